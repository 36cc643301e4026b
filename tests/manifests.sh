#!/bin/sh
# Whether deploy/ is whole, as far as that can be said without a cluster: every document decodes strictly into its
# type, references lead somewhere, the chart renders what kustomize builds, queries are queries, the image's file
# system is the same each time it is made. `make check` runs it.
set -eu
cd "$(dirname "$0")/.."

(
    cd tests/go/manifests
    go vet ./...
    go test ./...
    go mod tidy -diff
)

# Tools that look at the Dockerfile and at scripts, where they are installed.
if command -v hadolint >/dev/null; then hadolint deploy/Dockerfile; fi
if command -v shellcheck >/dev/null; then shellcheck tests/manifests.sh deploy/image.sh; fi
