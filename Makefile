# What people and machines run. `make help` lists it.

CARGO ?= cargo
GO_BIN := tests/go/bin
CRD_MODULE := github.com/kubernetes-csi/external-snapshotter/client/v8
# Without what a client of the API server logs of its own while that starts.
QUIET := RUST_LOG=$${RUST_LOG:-info,kube_client=off}
export PATH := $(CURDIR)/target/tools/bin:$(PATH)

DIRECT := $(CARGO) test --workspace --test direct --locked --quiet -- --ignored --test-threads 2

.PHONY: documents site figures fuzz help build demo direct guest test test-units test-waiting test-tiers check manifests sanity vendors twin sim mutants chaos powercut publish release bench badnet scale hostile hop size sbom artifacts machines tools stand stand-down e2e conformance skew page model

help: ## Show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

build: ## Build csi-cloud, csi-edge and the tests' drivers (debug)
	$(CARGO) build --workspace --locked

# What it runs. For the workspace, so that a later `make build` builds nothing of it again.
DEMO := conformance csi-cloud csi-edge hostdir

demo: ## Three edges, one over QUIC, and a volume's whole life
	$(CARGO) build --workspace --locked $(addprefix --bin ,$(DEMO))
	target/debug/conformance demo

test: $(GO_BIN)/.done build ## All tests; tiers whose tools are missing are named
	$(CARGO) test --workspace --lib --test '*' --locked --quiet --no-run
	@sh tests/summary.sh $(MAKE) --no-print-directory --jobs 3 --output-sync=line test-units test-waiting test-tiers

# The three parts of `make test`, which mostly wait and so run at once. Each line's output is shown when it has ended.
test-units:
	$(CARGO) test --workspace --lib --test '*' --locked --quiet -- --skip waiting::

test-waiting:
	$(CARGO) test --workspace --test programs --locked --quiet -- --test-threads 4 waiting::

test-tiers:
	target/debug/conformance chaos --seconds 15 --quiet
	@if [ "$$(id -u)" = 0 ]; then $(CARGO) test --workspace --lib --locked --quiet -- --ignored hostdir:: leftovers:: && $(DIRECT); else \
	  echo "tier skipped: mounts of hostdir, direct volumes: they need root"; [ "$$CI" != true ]; fi
	@if [ ! -x $(GO_BIN)/csi-sanity ]; then \
	  echo "tier skipped: csi-sanity: Go is not installed; get it from your distribution or go.dev"; [ "$$CI" != true ]; \
	elif [ "$$(id -u)" != 0 ]; then \
	  echo "tier skipped: csi-sanity: its mounts need root"; [ "$$CI" != true ]; \
	else target/debug/conformance sanity && target/debug/conformance sanity --nodes 3 --way ws; fi
	@if [ -x $(GO_BIN)/fielddriver ]; then target/debug/conformance twin; else \
	  echo "tier skipped: twins: Go is not installed; get it from your distribution or go.dev"; [ "$$CI" != true ]; fi

direct: build ## Direct volumes: create, format, hand over to guests in namespaces of their own, stats and growth (root)
	$(DIRECT)

guest: build ## Direct volumes with real guests: QEMU and Debian's kernel from packages, KVM or emulated (root); TURN='name …'
	@sh tests/guest.sh target/debug/guest vm $(foreach turn,$(TURN),--turn $(turn))

manifests: ## Render deploy/manifests from the chart; `make check` compares
	cd tests/go/manifests && go run -trimpath ./render

check: ## Format, clippy, docs, dependencies, generated code, rooms, subjects of commits
	@sh tests/check.sh

sanity: $(GO_BIN)/.done build ## csi-sanity, direct and through both links; DRIVER='command {endpoint} {state}' for yours ({controller} for a second socket), OPTIONS='csi-sanity flags' for it, BAD=1 over a bad network, NODES=3 at several nodes
	@[ -x $(GO_BIN)/csi-sanity ] || { echo "make sanity needs Go; get it from your distribution or go.dev" >&2; exit 1; }
	target/debug/conformance sanity $(if $(DRIVER),--driver '$(DRIVER)') $(if $(OPTIONS),--options '$(OPTIONS)') $(if $(BAD),--bad-network) $(if $(NODES),--nodes $(NODES))

# What vendors' drivers get besides `{endpoint}` and `{node}`: parameters with which more specs pass.
GCEPD_OPTIONS := --csi.testvolumeparameters=$(CURDIR)/tests/go/vendors/gcepd/parameters.yaml \
  --csi.testvolumemutableparameters=$(CURDIR)/tests/go/vendors/gcepd/mutable.yaml
DRIVER_OF = --name $(1) --driver '$(CURDIR)/$(GO_BIN)/$(1) --endpoint {endpoint} --node-id {node}'

vendors: $(GO_BIN)/vendors.done $(GO_BIN)/kubernetes.done $(GO_BIN)/.done build ## Drivers that others wrote, by their own servers: csi-sanity direct and through both links, and two nodes of one in a whole Kubernetes (root)
	target/debug/conformance sanity $(call DRIVER_OF,gcepd) --options '$(GCEPD_OPTIONS)'
	target/debug/conformance sanity $(call DRIVER_OF,mockdriver)
	$(QUIET) target/debug/cluster e2e --row vendors

twin: $(GO_BIN)/kubernetes.done $(GO_BIN)/.done build ## What drivers of the field do, with the driver alone and behind us, side by side; then claims at a real API server; ONLY='text' of a scenario's name
	@[ -x $(GO_BIN)/fielddriver ] || { echo "make twin needs Go; get it from your distribution or go.dev" >&2; exit 1; }
	target/debug/conformance twin $(if $(ONLY),--only '$(ONLY)')
	$(QUIET) target/debug/cluster twin $(if $(ONLY),--only '$(ONLY)')

sim: ## The simulation (optimised): SEEDS=n from FIRST=x on, or one of them with its trace: SEED=x; REPLICAS=1 only those of them with several clouds; SHORT=1 as built for tests
	$(if $(SHORT),$(CARGO) build --workspace --locked,$(MEASURE) --bin sim)
	$(if $(SHORT),target/debug,target/measure)/sim $(if $(FIRST),--first $(FIRST)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) $(if $(REPLICAS),--replicas)

model: ## Every state of the model of several csi-clouds, with larger bounds than `make test`
	$(CARGO) test --locked --quiet -p model -- --ignored --nocapture --test-threads 1

mutants: ## Put faults into a copy of our code and see whether the simulation finds them; MUTANTS='names'
	sh tests/mutants.sh $(MUTANTS)

fuzz: tools ## Each parser of bytes from outside under cargo-fuzz; SECONDS=n for each, TARGETS='names'
	sh tests/fuzz.sh '$(or $(SECONDS),60)' $(TARGETS)

chaos: build ## Kill, stop and cut everything at random under load, and look for what was lost; SECONDS=n SEED=n, REPLICAS=3 with as many csi-clouds and a real etcd of three members
	target/debug/conformance chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(REPLICAS),--replicas $(REPLICAS))

powercut: build $(if $(WHOLE),$(GO_BIN)/kubernetes.done) ## Power cuts of a node that is cut off: every volume is back with its data, none twice, nothing left over (root); SEEDS=n SEED=n VOLUMES=n, or WHOLE=n of a whole node with its kubelet: SEED=n
	$(if $(WHOLE),$(QUIET) WHOLE=$(WHOLE) SEED=$(SEED) target/debug/cluster e2e --row power-cut,target/debug/conformance powercut $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) $(if $(VOLUMES),--volumes $(VOLUMES)))

# DEPLOYED=1 is the manifests, DEPLOYED=helm the chart as Helm has it, DEPLOYED=ha the manifests of three csi-clouds.
TOOL = $(if $(DEPLOYED),--deployed $(or $(filter helm ha,$(DEPLOYED)),manifests))

stand: $(GO_BIN)/kubernetes.done $(if $(DEPLOYED),$(GO_BIN)/bundles.done) build ## A whole Kubernetes with three edges that stays up; prints its kubeconfig; DEPLOYED=1, helm or ha: our programs as pods, by deploy/
	$(QUIET) target/debug/cluster up $(TOOL)

stand-down: ## End it
	target/debug/cluster down

e2e: $(GO_BIN)/kubernetes.done $(GO_BIN)/bundles.done $(GO_BIN)/.done $(if $(FIGURES),figures,build) ## A whole Kubernetes, and what must work in it; ROWS='name …' for some of it, STANDS=n on as many at once, LONG=1 with long outages, DEPLOYED=1, helm, or ha (three csi-clouds) with our programs as pods, by deploy/ (IMAGES=directory of image.sh's archives), FIGURES=1 for times and memory (release build)
	$(QUIET) LONG=$(LONG) $(if $(STANDS),sh tests/stands.sh $(STANDS),target/$(if $(FIGURES),measure,debug)/cluster e2e) $(TOOL) $(foreach row,$(if $(FIGURES),figures,$(ROWS)),--row $(row))

documents: $(GO_BIN)/kubernetes.done $(GO_BIN)/release.done build ## The procedures of the documents, read out of their pages and run in order on a whole Kubernetes with Helm and kubectl (root)
	$(QUIET) target/debug/cluster documents

skew: $(GO_BIN)/kubernetes.done $(GO_BIN)/bundles.done build ## Two versions at once: COMMIT=d95acf6b (0.2.0) or db421f83; main rows of make e2e with its csi-cloud, then with its csi-edge, then upgrade and rollback under load, and the chart's manifests over the older ones; SIDES='cloud edge both deployed', or ha for three csi-clouds, ROWS='name …' for some (root)
	$(QUIET) COMMIT='$(COMMIT)' SIDES='$(SIDES)' ROWS='$(ROWS)' sh tests/skew.sh

conformance: $(GO_BIN)/kubernetes.done $(GO_BIN)/conformance.done build ## Kubernetes' own storage suite on a whole Kubernetes, with us and without us (root); FOCUS='regular expression', AT_ONCE=n, ONLY=suite, serial or disruptive, SHORT=1 for some quick tests
	$(QUIET) target/debug/cluster conformance $(if $(SHORT),--short) $(if $(ONLY),--only $(ONLY)) $(if $(FOCUS),--focus '$(FOCUS)') $(if $(AT_ONCE),--at-once $(AT_ONCE))

# The tests' programs for measurements. Without link-time optimisation: it would be most of the time.
MEASURE = $(CARGO) build --locked --profile measure --workspace --exclude cloud --exclude edge
# The products as users get them: by themselves, so that nothing is in them that tests switch on.
PRODUCTS = $(CARGO) build --locked --release -p cloud -p page -p edge
# Both at the same time, since one waits often where the other could work.
RELEASE = $(MEASURE) $(addprefix --bin ,$(1)) & measure=$$!; \
  $(PRODUCTS); products=$$?; wait $$measure && [ $$products = 0 ]

figures:
	$(call RELEASE,cluster hostdir oci-wrapper)

release: ## The products; what measures them is built by the targets that measure
	$(PRODUCTS)

bench: ## Calls against calling the driver directly, routing among a million volumes, durable creates (release build); CASE=calls, routing, durable, replicas: several csi-clouds with a real etcd, idle: what a csi-edge costs that has nothing to do, linked and in an outage (root), or guest: a direct volume against a shared directory in a real guest
	$(call RELEASE,bench testdriver $(if $(filter guest,$(CASE)),hostdir guestinit))
	$(if $(filter guest,$(CASE)),sh tests/guest.sh) target/measure/bench $(or $(CASE),all)

badnet: ## Calls over a far and lossy network, WebSocket against QUIC (release build; root)
	$(call RELEASE,bench)
	target/measure/bench badnet

scale: ## Thousands of idle edges: memory, CPU, and how fast they come back (release build); LINKS=n
	$(call RELEASE,bench)
	target/measure/bench scale $(if $(LINKS),--links $(LINKS))

hostile: ## Hostile peers: silent sockets, no hello, nothing read, node remove, changing scopes, QUIC Initials, HTTP/2 frames, wrong tokens, lies about drivers, volumes and leases (release build); CASE=name, SHORT=1 for smaller numbers in a debug build
	$(if $(SHORT),$(CARGO) build --workspace --locked,$(call RELEASE,bench))
	$(if $(SHORT),target/debug,target/measure)/bench hostile $(if $(SHORT),--short) $(if $(CASE),--case $(CASE))

page: ## The page in Chromium (Debian's chromium and chromium-driver), with 3 nodes and with 5,000: pictures in target/page; SHORT=1 with 3 only (debug)
	@sh tests/chromium.sh
	$(if $(SHORT),$(CARGO) build --workspace --locked,$(call RELEASE,bench))
	$(if $(SHORT),target/debug,target/measure)/bench page $(if $(SHORT),--short)

# What is not here is in `make test` and `make e2e`: docs/design/testing.md has the table.
SITE = bad_starts:: full_disk:: other_machine:: runs:: older_store:: state:: offline_front:: endpoints:: renewal:: \
  trust:: links::an_edge doctor::large_packets

site: $(GO_BIN)/kubernetes.done $(GO_BIN)/.done build ## Nodes that nobody drives to: false clocks, damaged files, full disks, copies of a disk, older stores, swallowed packets; a node of a whole Kubernetes that boots in 1970 (root)
	$(CARGO) test --package proto --package edge --locked --quiet -- swallows an_hour_without a_damaged_file a_log_that_nobody a_panic clock
	$(CARGO) test --workspace --test programs --locked --quiet -- --test-threads 4 $(SITE)
	$(QUIET) target/debug/cluster e2e --row boot-1970

hop: build ## What a hop by `csi-cloud relay` costs, printed; a measurement without a target
	$(CARGO) test --workspace --test programs --locked --quiet -- --ignored --nocapture socket_relay::

# The first run makes the store, so that the memory of the second one is that of a start.
SIZE = EDGE_CSI_SIZE=$(or $(DIR),$(CURDIR)/target/size) \
  $(CARGO) test --release --package cloud --lib --locked --quiet -- --ignored --nocapture --test-threads 1

size: ## Opening a store of a million volumes, and commits per second of a disk (release build); DIR=directory of the store
	@mkdir -p $(or $(DIR),target/size)
	[ -e $(or $(DIR),target/size)/store ] || $(SIZE) size::a_start
	$(SIZE) size::

SBOM = cargo sbom --output-format cyclone_dx_json_1_6 --cargo-package

sbom: tools ## An SBOM of each program (CycloneDX) in target/sbom, of what Cargo.lock says
	@mkdir -p target/sbom
	$(CARGO) metadata --locked --format-version 1 >/dev/null
	$(SBOM) cloud > target/sbom/csi-cloud.cdx.json
	$(SBOM) edge > target/sbom/csi-edge.cdx.json
	@ls target/sbom/*

publish: $(GO_BIN)/release.done ## What a tag runs (deploy/release.sh, the workflow), against a registry of its own: images of two architectures, chart, notes; signs nothing
	@sh tests/release.sh

artifacts: tools ## What is installed from, in target/artifacts: static programs, Debian packages, images, the chart, SBOMs, checksums (release build); ARCH='amd64 arm64', TWICE=1 in two places, which must be the same
	rm -rf target/artifacts
	$(if $(TWICE),sh tests/reproducible.sh,deploy/artifacts.sh) target/artifacts $(ARCH)
	sh tests/artifacts.sh target/artifacts

machines: build ## Debian packages of target/artifacts on two booted machines, by the steps of docs/how-to/systemd.md, to a running pod (root)
	sh tests/machines/run.sh target/artifacts

# Without what a debugger wants, and with what several have in common built once.
INSTALL = CARGO_PROFILE_DEV_DEBUG=false CARGO_TARGET_DIR=target/tools/build $(CARGO) install --quiet --locked --debug --root target/tools

tools: ## Install what `make check` and `make artifacts` need and the machine lacks
	command -v cargo-deny >/dev/null || $(INSTALL) cargo-deny@0.20.2
	command -v cargo-sbom >/dev/null || $(INSTALL) cargo-sbom@0.10.0
	command -v cargo-deb >/dev/null || $(INSTALL) cargo-deb@3.8.0
	rm -rf target/tools/build

# Kubernetes and its sidecars: minutes when cold, nothing when warm. The kinds of snapshots are beside their types. It
# knows its version by the linker, as in its own build; Helm looks at it.
$(GO_BIN)/kubernetes.done: $(wildcard tests/go/kubernetes/go.* tests/go/kubernetes/*.go tests/go/kubernetes/*/*.go)
	@command -v go >/dev/null || { echo "a Kubernetes needs Go; get it from your distribution or go.dev" >&2; exit 1; }
	@mkdir -p $(GO_BIN)/crd
	cd tests/go/kubernetes && go build -trimpath -p 2 -o ../bin/ \
	  -ldflags "-X k8s.io/component-base/version.gitVersion=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes)" tool
	cp -f "$$(cd tests/go/kubernetes && go list -m -f '{{.Dir}}' $(CRD_MODULE))"/config/crd/*snapshot.storage.k8s.io_*.yaml $(GO_BIN)/crd/
	@chmod u+w $(GO_BIN)/crd/*
	@touch $@

# Kubernetes' end-to-end tests, and what they run: minutes when cold. Without vet, which takes as long as the rest.
# agnhost is for an image without libraries; that it is linked so, the linker warns of.
$(GO_BIN)/conformance.done: $(wildcard tests/go/conformance/go.* tests/go/conformance/*/*.go)
	@command -v go >/dev/null || { echo "Kubernetes' storage suite needs Go; get it from your distribution or go.dev" >&2; exit 1; }
	@mkdir -p $(GO_BIN)
	cd tests/go/conformance && go test -c -vet=off -trimpath -p 2 -o ../bin/e2e.test k8s.io/kubernetes/test/e2e
	cd tests/go/conformance && go build -trimpath -p 2 -o ../bin/ tool
	cd tests/go/conformance && go build -trimpath -p 2 -ldflags '-s -w -linkmode external -extldflags -static' \
	  -o ../bin/agnhost k8s.io/kubernetes/test/images/agnhost
	@touch $@

# Drivers that others wrote: 4 minutes when cold, for the libraries of their clouds.
$(GO_BIN)/vendors.done: $(wildcard tests/go/vendors/go.* tests/go/vendors/*/*.go)
	@command -v go >/dev/null || { echo "vendors' drivers need Go; get it from your distribution or go.dev" >&2; exit 1; }
	@mkdir -p $(GO_BIN)
	cd tests/go/vendors && go build -trimpath -p 2 -o ../bin/ ./...
	@touch $@

# What a release is pushed with.
$(GO_BIN)/release.done: tests/go/release/go.mod tests/go/release/go.sum
	@command -v go >/dev/null || { echo "a release needs Go; get it from your distribution or go.dev" >&2; exit 1; }
	@mkdir -p $(GO_BIN)
	cd tests/go/release && go build -trimpath -p 2 -o ../bin/ tool
	@touch $@

# What the chart renders to.
$(GO_BIN)/bundles.done: $(wildcard tests/go/manifests/*.go tests/go/manifests/*/*) $(shell find deploy tests/cluster/src/stand/manifests -type f)
	@mkdir -p $(GO_BIN)/bundles
	cd tests/go/manifests && go run -trimpath ./bundles ../bin/bundles
	@touch $@

# Without Go there is nothing to build, and the tiers that need it say so.
$(GO_BIN)/.done: $(wildcard tests/go/go.* tests/go/*.go tests/go/mockdriver/* tests/go/fielddriver/* tests/go/nri/*)
	@mkdir -p $(GO_BIN)
	@if command -v go >/dev/null; then \
	  (cd tests/go && go build -trimpath -p 2 -o bin/ tool) && \
	  (cd tests/go/mockdriver && go build -trimpath -p 2 -o ../bin/ .) && \
	  (cd tests/go/fielddriver && go build -trimpath -p 2 -o ../bin/ .) && \
	  (cd tests/go/nri && go build -trimpath -p 2 -o ../bin/ .); fi
	@touch $@
