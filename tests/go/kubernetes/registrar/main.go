// Command registrar tells a kubelet about a CSI driver: what the official node-driver-registrar does,
// which cannot be had as a Go module. It lives until it is stopped, and exits when the kubelet refuses
// the driver, as the official one does.
//
//	registrar -driver NAME -endpoint /path/of/csi.sock -listen ROOT/plugins_registry/NAME-reg.sock
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
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
	flag.Parse()

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
		log.Fatalf("the kubelet refused %s: %s", *driver, why)
	case err := <-served:
		log.Fatalf("serving on %s: %v", *listen, err)
	}
}
