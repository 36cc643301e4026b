#!/bin/sh
# Has the programs of a commit write what the tests of formats read: make.sh COMMIT VERSION
set -eu
cd "$(dirname "$0")/../.."
commit=${1:?COMMIT is missing}
version=${2:?VERSION is missing}
older=${OLDER:-$(sh tests/older.sh "$commit")}
cargo build --locked --workspace
# csi-edge hands direct volumes to targets of the kubelet only.
export TMPDIR=/var/lib/kubelet
mkdir -p "$TMPDIR"
EDGE_CSI_CLOUD=$older/csi-cloud EDGE_CSI_EDGE=$older/csi-edge FORMATS=$PWD/tests/formats/$version \
  cargo test --locked -p integration --test programs -- --ignored older_programs_write
