package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// habits are what the driver does to all calls of a kind.
type habits struct {
	slowInfo         time.Duration
	failInfo         bool
	controller, gzip string
	topology         bool
	validates        bool
	snapshots        bool
	foreign          bool
	list             uint
	page             uint
	stale            uint
	lastTokens       bool
}

func (h *habits) flags() {
	flag.DurationVar(&h.slowInfo, "slow-info", 0, "how long NodeGetInfo takes")
	flag.BoolVar(&h.failInfo, "fail-info", false, "NodeGetInfo fails, as without the API server")
	flag.StringVar(&h.controller, "controller", "served",
		"absent: the service is not registered; failing: its calls are INTERNAL. Both are said to be served")
	flag.StringVar(&h.gzip, "gzip", "never", "asked: answers are compressed if the caller takes it; always: they are")
	flag.BoolVar(&h.topology, "topology", false, "a segment of the node; a volume is where the caller prefers it first")
	flag.BoolVar(&h.validates, "validates", false, "ValidateVolumeCapabilities confirms each id; it is absent otherwise")
	flag.BoolVar(&h.snapshots, "snapshots", false, "ListSnapshots has the one that is asked for, if it is at this node")
	flag.BoolVar(&h.foreign, "foreign", false, "a list of volumes ends with `lost+found`, as of a directory")
	flag.UintVar(&h.list, "list", 0, "so many volumes are listed, in pages if the caller asks for pages; 0 is no list")
	flag.UintVar(&h.page, "page", 0, "the most entries of an answer to ListVolumes, whatever is asked")
	flag.UintVar(&h.stale, "stale-tokens", 0, "so many times a token of ListVolumes is ABORTED")
	flag.BoolVar(&h.lastTokens, "last-tokens", false,
		"a token of ListVolumes is ABORTED when another list has begun")
}

func (h *habits) check() error {
	if !slices.Contains([]string{"served", "absent", "failing"}, h.controller) {
		return fmt.Errorf("--controller=%s is unknown", h.controller)
	}
	if !slices.Contains([]string{"never", "asked", "always"}, h.gzip) {
		return fmt.Errorf("--gzip=%s is unknown", h.gzip)
	}
	return nil
}

// refused is the error of each call of a controller that fails.
func (h *habits) refused(method string) error {
	if h.controller == "failing" && strings.HasPrefix(method, "/csi.v1.Controller/") {
		return status.Error(codes.Internal, "this process has no controller")
	}
	return nil
}

// isElsewhere tells whether an id is of something at another node.
func (d *driver) isElsewhere(id string) bool {
	_, node, found := strings.Cut(id, "@")
	return found && node != d.node
}

// notFound is the error of a request about something at another node.
func (d *driver) notFound(method string, request any) error {
	id := about(request)
	if r, ok := request.(*csi.CreateVolumeRequest); ok {
		id = r.GetVolumeContentSource().GetSnapshot().GetSnapshotId()
	}
	for _, end := range []string{"Delete", "Unpublish", "Unstage"} {
		if strings.Contains(method, end) {
			return nil
		}
	}
	if d.isElsewhere(id) {
		return status.Errorf(codes.NotFound, "%s is not here", id)
	}
	return nil
}

// failure is the error with the code at the beginning of text, with all that an error can have.
func failure(ctx context.Context, text string) error {
	number, _, _ := strings.Cut(text, " ")
	code, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := grpc.SetTrailer(ctx, metadata.Pairs("x-field", "kept")); err != nil {
		return err
	}
	failed := status.Newf(codes.Code(code), "100%% of „disk“ is away (%d)\nask again", code)
	detailed, err := failed.WithDetails(&csi.Topology{Segments: map[string]string{"field": "detail"}})
	if err != nil {
		return err
	}
	return detailed.Err()
}

func (d *driver) ValidateVolumeCapabilities(
	_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if !d.validates {
		return nil, status.Error(codes.Unimplemented, "it is not implemented")
	}
	confirmed := &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.GetVolumeCapabilities()}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: confirmed}, nil
}

// ListSnapshots lists the snapshot that is asked for, if it is here. Nobody made any other.
func (d *driver) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if !d.snapshots {
		return nil, status.Error(codes.Unimplemented, "it is not implemented")
	}
	answer := &csi.ListSnapshotsResponse{}
	if id := r.GetSnapshotId(); id != "" && !d.isElsewhere(id) {
		snapshot := &csi.Snapshot{SnapshotId: id, SourceVolumeId: "v", ReadyToUse: true}
		answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshot})
	}
	return answer, nil
}

// ListVolumes lists `listed-0` and so on, each with this node. It returns all of them unless the caller or a flag wants less.
func (d *driver) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if d.list == 0 {
		return nil, status.Error(codes.Unimplemented, "it is not implemented")
	}
	first := uint64(0)
	token := r.GetStartingToken()
	list := d.listed(token == "")
	if token != "" {
		end, of, _ := strings.Cut(token, " of ")
		var err error
		if first, err = strconv.ParseUint(end, 10, 32); err != nil || of != list || d.isStale() {
			return nil, status.Error(codes.Aborted, "the token is not valid any more; begin anew")
		}
	}
	end := uint64(d.list)
	answer := &csi.ListVolumesResponse{}
	most := uint64(r.GetMaxEntries())
	if page := uint64(d.page); page > 0 && (most == 0 || page < most) {
		most = page
	}
	if most > 0 && first+most < end {
		end = first + most
		answer.NextToken = fmt.Sprintf("%d of %s", end, list)
	}
	for ; first < end; first++ {
		volume := &csi.Volume{VolumeId: fmt.Sprintf("listed-%d@%s", first, d.node), CapacityBytes: 1 << 20}
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{Volume: volume})
	}
	if d.foreign && answer.NextToken == "" {
		volume := &csi.Volume{VolumeId: "lost+found", CapacityBytes: 1 << 20}
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{Volume: volume})
	}
	return answer, nil
}

// listed is the name of the list whose tokens are valid: of the last one that was begun, or of all.
func (d *driver) listed(begins bool) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if begins && d.lastTokens {
		d.lists++
	}
	return strconv.FormatUint(d.lists, 10)
}

// isStale tells whether one more token is refused.
func (d *driver) isStale() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.staleTokens++
	return d.staleTokens <= d.stale
}
