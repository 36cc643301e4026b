// A container runtime's side of NRI, by NRI's own library as containerd and CRI-O link it. It listens for plugins, and
// reads containers as lines of JSON. For each one it writes the OCI mounts after the plugins' changes, or why it is not
// started.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrigen "github.com/containerd/nri/pkg/runtime-tools/generate"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	rgen "github.com/opencontainers/runtime-tools/generate"
)

// A container that is to be made, or with End one that ends.
type ask struct {
	Handler, Sandbox, Container, End string
	Mounts                           []rspec.Mount
}

type answer struct {
	Mounts []rspec.Mount `json:"mounts,omitempty"`
	Error  string        `json:"error,omitempty"`
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(socket string) error {
	// The first time is the library's own start, without plugins.
	starting := true
	synchronized := func(ctx context.Context, sync adaptation.SyncCB) error {
		pods := []*api.PodSandbox{{Id: "before", Name: "before"}}
		_, err := sync(ctx, pods, []*api.Container{{Id: "c-before", PodSandboxId: "before"}})
		if !starting {
			fmt.Printf("{\"plugin\":%t}\n", err == nil)
		}
		starting = false
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	runtime, err := adaptation.New("edge-csi-tests", "v1", synchronized, update,
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(os.DevNull+".d"))
	if err != nil {
		return err
	}
	if err := runtime.Start(); err != nil {
		return err
	}
	defer runtime.Stop()
	fmt.Println(`{"listening":true}`)
	lines, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked ask
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		answered := create
		if asked.End != "" {
			answered = end
		}
		if err := out.Encode(answered(runtime, asked)); err != nil {
			return err
		}
	}
	return lines.Err()
}

// A container has ended, or is removed: so ends one that was not made in the end.
func end(runtime *adaptation.Adaptation, asked ask) answer {
	defer runtime.BlockPluginSync().Unblock()
	pod := &api.PodSandbox{Id: asked.Sandbox}
	container := &api.Container{Id: asked.Container + "-id", PodSandboxId: asked.Sandbox}
	var err error
	if asked.End == "removed" {
		err = runtime.RemoveContainer(context.Background(), &api.RemoveContainerRequest{Pod: pod, Container: container})
	} else {
		_, err = runtime.StopContainer(context.Background(), &api.StopContainerRequest{Pod: pod, Container: container})
	}
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{}
}

func create(runtime *adaptation.Adaptation, asked ask) answer {
	// As containerd does: not while a plugin is half there.
	defer runtime.BlockPluginSync().Unblock()
	spec := &rspec.Spec{Mounts: asked.Mounts}
	response, err := runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{
		Pod: &api.PodSandbox{
			Id: asked.Sandbox, Name: "pod", Uid: "uid", Namespace: "default", RuntimeHandler: asked.Handler,
			Annotations: map[string]string{"a": "b"},
		},
		Container: &api.Container{
			Id: asked.Container + "-id", PodSandboxId: asked.Sandbox, Name: asked.Container, Args: []string{"sh"},
			Mounts: api.FromOCIMounts(spec.Mounts),
		},
	})
	if err != nil {
		return answer{Error: err.Error()}
	}
	generator := nrigen.SpecGenerator(&rgen.Generator{Config: spec})
	if err := generator.Adjust(response.GetAdjust()); err != nil {
		return answer{Error: "adjust: " + err.Error()}
	}
	return answer{Mounts: spec.Mounts}
}
