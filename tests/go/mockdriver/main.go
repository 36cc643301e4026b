// Mockdriver serves Kubernetes' own mock CSI driver, which its end-to-end tests use, as a process.
//
// It is a CSI driver that nobody of this project wrote: what the link does to it, it does to others.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

// identity answers with the driver's name. The mock takes one text for its name and its node's id; the id is
// the one it checks at other places too, so the name is what is put in here.
type identity struct {
	service.Service
	name string
}

func (i identity) GetPluginInfo(
	ctx context.Context, request *csi.GetPluginInfoRequest,
) (*csi.GetPluginInfoResponse, error) {
	info, err := i.Service.GetPluginInfo(ctx, request)
	if err != nil {
		return nil, err
	}
	info.Name = i.name
	return info, nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mockdriver:", err)
		os.Exit(1)
	}
}

func run() error {
	endpoint := flag.String("endpoint", "", "where to listen: unix:///path")
	nodeID := flag.String("node-id", "", "the node id that NodeGetInfo answers")
	name := flag.String("name", service.Name, "the driver's name")
	flag.Parse()
	path, ok := strings.CutPrefix(*endpoint, "unix://")
	if !ok || *nodeID == "" {
		return errors.New("--endpoint unix:///path and --node-id are needed")
	}
	// Before `ready`, so that a signal right after it finds its handler.
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()

	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	mock := service.New(service.Config{
		DriverName:                  *nodeID,
		AttachLimit:                 2,
		NodeExpansionRequired:       true,
		NodeVolumeConditionRequired: true,
		VolumeMountGroupRequired:    true,
		EnableTopology:              true,
	})
	server := driver.NewCSIDriver(&driver.CSIDriverServers{
		Controller: mock,
		Identity:   identity{mock, *name},
		Node:       mock,
	})
	if err := server.Start(listener, nil); err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	server.Stop()
	return nil
}
