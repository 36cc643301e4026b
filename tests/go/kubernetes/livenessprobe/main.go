// Command livenessprobe answers /healthz by asking a CSI driver for Probe: what the official one does, which cannot be
// had as a Go module. It has the official one's flags, as deploy/ gives them.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	address := flag.String("csi-address", "", "path of the driver's socket")
	endpoint := flag.String("http-endpoint", "", "address to listen at")
	timeout := flag.Duration("probe-timeout", time.Second, "how long an answer may take")
	flag.Parse()

	channel, err := grpc.NewClient("unix://"+*address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))
	if err != nil {
		log.Fatalf("dialing %s: %v", *address, err)
	}
	identity := csi.NewIdentityClient(channel)
	http.HandleFunc("/healthz", func(answer http.ResponseWriter, request *http.Request) {
		bounded, cancel := context.WithTimeout(request.Context(), *timeout)
		defer cancel()
		said, err := identity.Probe(bounded, &csi.ProbeRequest{})
		if err != nil || (said.GetReady() != nil && !said.GetReady().GetValue()) {
			log.Printf("the driver is not ready: %v", err)
			http.Error(answer, "the driver is not ready", http.StatusInternalServerError)
			return
		}
		answer.WriteHeader(http.StatusOK)
	})
	server := &http.Server{Addr: *endpoint, ReadHeaderTimeout: *timeout}
	log.Fatalf("serving on %s: %v", *endpoint, server.ListenAndServe())
}
