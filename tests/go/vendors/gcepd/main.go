// Gcepd serves the CSI driver of Google's persistent disks as a process: its own servers over the fake cloud, mounter
// and metadata service of its own tests, which need neither disks nor a network.
//
// Each process has a cloud of its own, so a volume exists at the node that made it. The node is in a zone of its own.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/api/compute/v1"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/deviceutils"
	gce "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-cloud-provider/compute"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-cloud-provider/metadata"
	driver "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-pd-csi-driver"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/linkcache"
	mountmanager "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/mount-manager"
)

const (
	// The driver's own name.
	name = "pd.csi.storage.gke.io"
	// A zone's name is a country, a region and a letter; the driver takes it apart.
	region = "country-region-"
	// How long the driver keeps what it knows of a node's devices.
	kept = time.Minute
	// How long it waits at most before it repeats what has failed at the cloud.
	backOff = 5 * time.Minute
	// The bytes of a message that are logged.
	logged = 10_000
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gcepd:", err)
		os.Exit(1)
	}
}

func run() error {
	endpoint := flag.String("endpoint", "", "where to listen: unix:///path")
	node := flag.String("node-id", "", "the node, which is the name of its instance and of its zone")
	flag.Parse()
	if !strings.HasPrefix(*endpoint, "unix://") || *node == "" {
		return fmt.Errorf("--endpoint unix:///path and --node-id are needed")
	}
	zone := region + *node
	metadata.SetZone(zone)
	metadata.SetName(*node)
	cloud, err := gce.CreateFakeCloudProvider(metadata.FakeProject, zone, nil)
	if err != nil {
		return err
	}
	cloud.InsertInstance(&compute.Instance{Name: *node}, zone, *node)

	pd := driver.GetGCEDriver()
	identity := driver.NewIdentityServer(pd)
	disks := driver.ProvisionableDisksConfig{
		SupportsIopsChange:       []string{"hyperdisk-balanced"},
		SupportsThroughputChange: []string{"hyperdisk-balanced"},
	}
	controller := driver.NewControllerServer(
		pd, cloud, 0, backOff, nil, false, false, driver.MultiZoneVolumeHandleConfig{},
		driver.ListVolumesConfig{}, disks, false, &driver.GCEControllerServerArgs{})
	mounter := mountmanager.NewFakeSafeMounter()
	statter := mountmanager.NewFakeStatterWithOptions(mounter, mountmanager.FakeStatterOptions{})
	server := driver.NewNodeServer(
		pd, mounter, deviceutils.NewFakeDeviceUtils(true), metadata.NewFakeService(), statter,
		&driver.NodeServerArgs{
			EnableDeviceInUseCheck: true,
			DeviceCache: linkcache.NewTestDeviceCache(
				kept, linkcache.NewTestNodeWithVolumes(nil)),
		})
	err = pd.SetupGCEDriver(name, "test", nil, nil, identity, controller, server)
	if err != nil {
		return err
	}
	pd.Run(*endpoint, logged, false, nil)
	return nil
}
