// Fielddriver is a CSI driver on grpc-go, the server that most vendors have, with the habits of the field: connections
// of a maximum age, few streams on each, pings that are too many, compressed answers, a controller that is not served
// here, slow, hanging and failing calls.
//
// What it does to a call is written in the volume's id or name, so that a test needs no other way to it:
// `take-2s…` answers after that time, `hang…` when the call is cancelled, and `deaf…` never, whatever happens.
// `fail-5…` fails with that code, in trailers alone, and `head-5…` after the headers of an answer. A word for one method
// stands before it, as in `NodeGetVolumeStats=hang…`: calls of other methods are answered at once. `fill…` takes all the
// room that the node has: later volumes do not fit.
//
// An id that ends with `@` and a node id is of something at that node. Other nodes do not have it: NOT_FOUND, or OK to
// what ends it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// entry is a line of the driver's own log.
type entry struct {
	At     float64 `json:"at"`
	Event  string  `json:"event"`
	Method string  `json:"method"`
	About  string  `json:"about"`
	Code   string  `json:"code,omitempty"`
}

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	habits
	name, node string

	mu          sync.Mutex
	log         *json.Encoder
	made        map[string]bool
	full        bool
	staleTokens uint
	lists       uint64
}

func (d *driver) write(event, method, about, code string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.log.Encode(entry{float64(time.Now().UnixMicro()) / 1e6, event, method, about, code})
}

// about is the volume's id of a request, or its name.
func about(request any) string {
	switch r := request.(type) {
	case *csi.CreateVolumeRequest:
		return r.GetName()
	case *csi.CreateSnapshotRequest:
		return r.GetName()
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	}
	return ""
}

// script does what the id says.
func script(ctx context.Context, method, id string) error {
	if of, rest, found := strings.Cut(id, "="); found {
		if of != method {
			return nil
		}
		id = rest
	}
	switch {
	case strings.HasPrefix(id, "hang"):
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	case strings.HasPrefix(id, "deaf"):
		select {}
	case strings.HasPrefix(id, "take-"):
		text, _, _ := strings.Cut(strings.TrimPrefix(id, "take-"), " ")
		took, err := time.ParseDuration(text)
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		time.Sleep(took)
	case strings.HasPrefix(id, "fail-"):
		return failure(ctx, strings.TrimPrefix(id, "fail-"))
	case strings.HasPrefix(id, "head-"):
		if err := grpc.SendHeader(ctx, nil); err != nil {
			return err
		}
		return failure(ctx, strings.TrimPrefix(id, "head-"))
	}
	return nil
}

// isMade tells whether the volume that a request wants is there already.
func (d *driver) isMade(request any) bool {
	create, ok := request.(*csi.CreateVolumeRequest)
	d.mu.Lock()
	defer d.mu.Unlock()
	return ok && d.made[create.GetName()]
}

func (d *driver) intercept(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	method := path.Base(info.FullMethod)
	id := about(request)
	d.write("begin", method, id, "")
	if d.gzip == "asked" {
		// It fails if the caller takes none.
		_ = grpc.SetSendCompressor(ctx, gzip.Name)
	}
	err := d.refused(info.FullMethod)
	if err == nil {
		err = d.notFound(method, request)
	}
	if err == nil && !d.isMade(request) {
		err = script(ctx, method, id)
	}
	var answer any
	if err == nil {
		answer, err = handler(ctx, request)
	}
	d.write("end", method, id, status.Code(err).String())
	return answer, err
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	capability := &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: service}}
	answer := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{capability}}
	if d.topology {
		service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}
		capability := &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: service}}
		answer.Capabilities = append(answer.Capabilities, capability)
	}
	return answer, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	kinds := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	}
	if d.list > 0 {
		kinds = append(kinds, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	}
	if d.snapshots {
		kinds = append(kinds, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
	}
	for _, kind := range kinds {
		rpc := &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}}
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{Type: rpc})
	}
	return answer, nil
}

// take makes a volume, or tells that there is no room for it.
func (d *driver) take(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full && !d.made[name] {
		return false
	}
	d.made[name] = true
	d.full = d.full || strings.HasPrefix(name, "fill")
	return true
}

func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if !d.take(r.GetName()) {
		return nil, status.Error(codes.ResourceExhausted, "the node is full")
	}
	volume := &csi.Volume{VolumeId: r.GetName(), CapacityBytes: 1 << 20, ContentSource: r.GetVolumeContentSource()}
	// As many drivers do, without a look at which node this is.
	if preferred := r.GetAccessibilityRequirements().GetPreferred(); d.topology && len(preferred) > 0 {
		volume.AccessibleTopology = preferred[:1]
	}
	return &csi.CreateVolumeResponse{Volume: volume}, nil
}

func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}

func (d *driver) ControllerPublishVolume(
	context.Context, *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (d *driver) ControllerUnpublishVolume(
	context.Context, *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *driver) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	snapshot := &csi.Snapshot{SnapshotId: r.GetName(), SourceVolumeId: r.GetSourceVolumeId(), ReadyToUse: true}
	return &csi.CreateSnapshotResponse{Snapshot: snapshot}, nil
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	} {
		rpc := &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}}
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{Type: rpc})
	}
	return answer, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	time.Sleep(d.slowInfo)
	if d.failInfo {
		return nil, status.Error(codes.Unavailable, "the API server is away")
	}
	answer := &csi.NodeGetInfoResponse{NodeId: d.node}
	if d.topology {
		answer.AccessibleTopology = &csi.Topology{Segments: map[string]string{d.name + "/node": d.node}}
	}
	return answer, nil
}

func (d *driver) NodeStageVolume(
	context.Context, *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *driver) NodeUnstageVolume(
	context.Context, *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (d *driver) NodePublishVolume(
	context.Context, *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *driver) NodeUnpublishVolume(
	context.Context, *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *driver) NodeGetVolumeStats(
	context.Context, *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	usage := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: 1 << 20, Used: 1, Available: 1<<20 - 1}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{usage}}, nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fielddriver:", err)
		os.Exit(1)
	}
}

func run() error {
	endpoint := flag.String("endpoint", "", "where to listen: unix:///path")
	node := flag.String("node-id", "", "the node id that NodeGetInfo answers")
	name := flag.String("name", "field.edge-csi.io", "the driver's name")
	log := flag.String("log", "", "where to write its calls, a line of JSON for each begin and end")
	maxAge := flag.Duration("max-age", 0, "how long a connection lives before it is told to leave; 0 is for ever")
	maxStreams := flag.Uint("max-streams", 0, "the most streams on a connection; 0 is any number")
	minPing := flag.Duration("min-ping", 0, "a client that pings more often is told to leave; 0 is grpc-go's own time")
	var habits habits
	habits.flags()
	flag.Parse()
	if err := habits.check(); err != nil {
		return err
	}
	socket, ok := strings.CutPrefix(*endpoint, "unix://")
	if !ok || *node == "" || *log == "" {
		return errors.New("--endpoint unix:///path, --node-id and --log are needed")
	}
	// Before it listens, so that a signal right after it finds its handler.
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	file, err := os.OpenFile(*log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	// As drivers do: what an earlier process left at the path is removed.
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	d := &driver{habits: habits, name: *name, node: *node, made: map[string]bool{}}
	d.log = json.NewEncoder(file)
	options := []grpc.ServerOption{grpc.UnaryInterceptor(d.intercept)}
	if *maxAge > 0 {
		options = append(options, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: *maxAge}))
	}
	if *maxStreams > 0 {
		options = append(options, grpc.MaxConcurrentStreams(uint32(*maxStreams)))
	}
	if *minPing > 0 {
		options = append(options, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: *minPing}))
	}
	if d.gzip == "always" {
		// Deprecated, but drivers have it, and it does not ask whether the caller takes it.
		options = append(options, grpc.RPCCompressor(grpc.NewGZIPCompressor()))
	}
	server := grpc.NewServer(options...)
	csi.RegisterIdentityServer(server, d)
	if d.controller != "absent" {
		csi.RegisterControllerServer(server, d)
	}
	csi.RegisterNodeServer(server, d)
	go func() {
		<-ctx.Done()
		// Handlers may hang for ever.
		server.Stop()
	}()
	return server.Serve(listener)
}
