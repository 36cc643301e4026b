#!/bin/sh
# Whether deploy/ is whole, as far as that can be said without a cluster. Every document decodes strictly into its
# type, references lead somewhere, deploy/manifests is what the chart renders, Helm's lint finds nothing, and queries are
# queries. Both programs take what the chart gives them (`serve --check`). The image's file system is the same each time
# it is made. `make check` runs it.
set -eu
cd "$(dirname "$0")/.."

# Those of this source. As `make test` builds them, so nothing is built twice.
cargo build --quiet --locked --workspace --bin csi-cloud --bin csi-edge

(
    cd tests/go/manifests
    go vet ./...
    # Go keeps results and does not look at files outside the module, such as those of deploy/.
    go test -count=1 ./...
    go mod tidy -diff
)

# An image is the same, byte for byte, whenever and with whatever rights its program was copied.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
printf 'module m\n' > "$work/go.mod"
printf 'package main\n\nfunc main() {}\n' > "$work/main.go"
(cd "$work" && CGO_ENABLED=0 go build -o csi-cloud .)
deploy/image.sh "$work/csi-cloud" csi-cloud:test "$work/one.tar" >/dev/null
(umask 077 && touch -d 2001-01-01 "$work/csi-cloud" && TZ=Asia/Tokyo deploy/image.sh "$work/csi-cloud" csi-cloud:test "$work/two.tar" >/dev/null)
cmp "$work/one.tar" "$work/two.tar"
if tar --utc -tvf "$work/one.tar" | grep -v ' 1970-01-01 00:00 '; then
    echo "manifests: these have the time at which the image was made" >&2
    exit 1
fi

# Tools that look at the Dockerfile and at scripts, where they are installed.
if command -v hadolint >/dev/null; then hadolint deploy/Dockerfile; fi
if command -v shellcheck >/dev/null; then shellcheck tests/manifests.sh deploy/image.sh; fi
