// Command registrar tells a kubelet about a CSI driver: what the official node-driver-registrar does,
// which cannot be had as a Go module. It lives until it is stopped. When the kubelet refuses
// the driver, it exits, as the official one does; as a program, outside of a pod, it starts again.
//
//	registrar -driver NAME -endpoint /path/of/csi.sock -listen ROOT/plugins_registry/NAME-reg.sock
//
// It has the official one's flags too, as deploy/ gives them. Then it asks the driver for its name.
//
//	registrar -csi-address SOCKET -kubelet-registration-path SOCKET -plugin-registration-path DIRECTORY -timeout TIME
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar answers the kubelet's two questions.
type registrar struct {
	registration.UnsafeRegistrationServer
	driver, endpoint string
	refused          chan string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.driver,
		Endpoint:          r.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("the kubelet has registered %s: %t %s", r.driver, status.PluginRegistered, status.Error)
	if !status.PluginRegistered {
		select {
		case r.refused <- status.Error:
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	driver := flag.String("driver", "", "the driver's CSI name")
	endpoint := flag.String("endpoint", "", "path of the socket that the kubelet shall call")
	listen := flag.String("listen", "", "path of the socket in the kubelet's plugins_registry")
	address := flag.String("csi-address", "", "path of the socket that the driver is asked at for its name")
	path := flag.String("kubelet-registration-path", "", "the same as -endpoint")
	registry := flag.String("plugin-registration-path", "", "the kubelet's plugins_registry")
	timeout := flag.Duration("timeout", time.Second, "how long the driver may take to say its name")
	flag.Parse()

	if *address != "" {
		name, err := named(*address, *timeout)
		if err != nil {
			log.Fatalf("asking %s for its name: %v", *address, err)
		}
		*driver, *endpoint = name, *path
		*listen = filepath.Join(*registry, name+"-reg.sock")
	}
	// What an earlier registrar left when it was killed is in the way of a new one.
	if err := os.Remove(*listen); err != nil && !os.IsNotExist(err) {
		log.Fatalf("removing the old %s: %v", *listen, err)
	}
	socket, err := net.Listen("unix", *listen)
	if err != nil {
		log.Fatalf("listening on %s: %v", *listen, err)
	}
	server := grpc.NewServer()
	refused := make(chan string, 1)
	registration.RegisterRegistrationServer(server, &registrar{driver: *driver, endpoint: *endpoint, refused: refused})

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	served := make(chan error, 1)
	go func() { served <- server.Serve(socket) }()
	select {
	case <-stop:
		server.Stop()
	case why := <-refused:
		log.Printf("the kubelet refused %s: %s", *driver, why)
		server.Stop()
		if *address == "" {
			startAgain()
		}
		os.Exit(1)
	case err := <-served:
		log.Fatalf("serving on %s: %v", *listen, err)
	}
}

// startAgain is what a kubelet does with a pod's registrar, and nobody with one that is a program. A kubelet refuses a
// driver before it has read its own Node, for example.
func startAgain() {
	time.Sleep(time.Second)
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	log.Fatalf("starting again: %v", err)
}

// named asks a driver for its name.
func named(address string, timeout time.Duration) (string, error) {
	channel, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		return "", err
	}
	defer channel.Close()
	bounded, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	info, err := csi.NewIdentityClient(channel).GetPluginInfo(bounded, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	return info.GetName(), err
}
