#!/bin/sh
# Everything that can be checked without running the programs. Each step names itself; the first that
# fails ends the run.
set -eu
step() { printf '== %s\n' "$*"; }
need() {
    command -v "$1" >/dev/null || { echo "check: $1 is missing; get it with: $2" >&2; exit 1; }
}

step format
cargo fmt --all --check

step clippy
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

step docs
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items --locked --quiet

step dependencies
need cargo-deny 'make tools'
cargo deny --log-level error --locked check bans licenses sources

step 'the lock file of tests/fuzz'
# A workspace of its own, which ordinary builds do not look at.
cargo metadata --locked --format-version 1 --manifest-path tests/fuzz/Cargo.toml >/dev/null

step 'generated code'
# For the workspace, as `make test` builds it: so nothing is built twice.
cargo test --quiet --locked --workspace --test generated >/dev/null

step 'sizes of files'
long=$(git ls-files '*.rs' '*.go' ':!proto/src/csi/gen' ':!cloud/src/etcd/gen' ':!tests/drivers/src/grpc/gen' ':!tests/harness/src/etcd/gen' | xargs wc -l | awk '$2 != "total" && $1 > 600')
[ -z "$long" ] || { echo "check: longer than 600 lines:" >&2; echo "$long" >&2; exit 1; }

step 'columns of lines'
# Bytes that continue a character of UTF-8 take no column.
wide=$(git ls-files '*.rs' ':!proto/src/csi/gen' ':!cloud/src/etcd/gen' ':!tests/drivers/src/grpc/gen' ':!tests/harness/src/etcd/gen' | LC_ALL=C xargs awk '
    { gsub(/[\200-\277]/, "") }
    length > 100 { print FILENAME ":" FNR }')
[ -z "$wide" ] || { echo "check: lines of more than 100 columns:" >&2; echo "$wide" >&2; exit 1; }

step rooms
cargo run --quiet --locked -p rooms -- check
cargo run --quiet --locked -p rooms -- methods
# Since 0.3.0 was cut down; a shallow clone does not have that commit. Before it, 33 new types got another one's name.
base=80318521
if git rev-parse --quiet --verify "$base^{commit}" >/dev/null 2>&1; then
    cargo run --quiet --locked -p rooms -- ratchet --base "$base"
else
    echo "rooms: $base is not here, so nothing is compared with it"
fi

step commits
sh tests/rooms/commits.sh

step 'order of what is ready at the same moment'
# Without `biased` it is drawn, and a seed of the simulation would not do the same again.
drawn=$(git grep -A1 'select! {' -- proto/src cloud/src edge/src edge/calls/src edge/direct/src \
    tests/simulation/src |
    awk '/select! \{/ { at = $0; getline; if ($0 !~ /biased;$/) print at }')
[ -z "$drawn" ] || { echo "check: begin with \`biased;\`, and order the branches:" >&2; echo "$drawn" >&2; exit 1; }

step mutations
for mutation in tests/mutations/*.patch; do
    git apply --check "$mutation" || { echo "check: bring $mutation up to date with the code" >&2; exit 1; }
done

step go
if command -v go >/dev/null; then
    unformatted=$(gofmt -l tests/go)
    [ -z "$unformatted" ] || { echo "check: run gofmt -w on $unformatted" >&2; exit 1; }
    (cd tests/go && go vet ./... && go mod verify >/dev/null)
    (cd tests/go/mockdriver && go vet ./... && go mod tidy -diff)
    (cd tests/go/fielddriver && go vet ./... && go mod tidy -diff)
    (cd tests/go/nri && go vet ./... && go mod tidy -diff)
    (cd tests/go/conformance && go vet ./...)
elif [ "${CI:-}" = true ]; then
    echo "check: go is missing; get it from your distribution or go.dev" >&2
    exit 1
else
    echo "tier skipped: go vet: Go is not installed"
fi

step manifests
if command -v go >/dev/null; then
    sh tests/manifests.sh
else
    echo "tier skipped: manifests: Go is not installed"
fi

step artefacts
if command -v go >/dev/null && command -v dpkg-deb >/dev/null; then
    need cargo-deb 'make tools'
    need cargo-sbom 'make tools'
    sh tests/artifacts.sh
else
    echo "tier skipped: artefacts: they need Go and dpkg-deb"
fi
echo "check: all good"
