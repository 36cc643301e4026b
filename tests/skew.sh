#!/bin/sh
# Main rows of the stand with csi-cloud of an older version, then with its csi-edge; then upgrade and rollback under
# load. COMMIT is the older version; ROWS are rows in place of the main ones, SIDES some of: cloud edge both.
set -eu
cd "$(dirname "$0")/.."
rows=${ROWS:-pod pod-again block stateful-set snapshot clone expand-online edge-killed edge-cut cloud-restarts}
older=$(sh tests/older.sh "${COMMIT:?is the older version: make skew COMMIT=d95acf6b (0.2.0), or COMMIT=db421f83}")
failed=0

for side in ${SIDES:-cloud edge both}; do
    case $side in
        cloud) with="EDGE_CSI_CLOUD=$older/csi-cloud" names=$rows ;;
        edge) with="EDGE_CSI_EDGE=$older/csi-edge" names=$rows ;;
        both) with=EDGE_CSI_BOTH=1 names='upgrade rollback' ;;
        *) echo "SIDES are some of: cloud edge both" >&2; exit 2 ;;
    esac
    echo "== older: $side of $COMMIT; rows: $names"
    # shellcheck disable=SC2086 # names are words
    env "EDGE_CSI_OLDER=$older" "$with" target/debug/cluster e2e $(printf -- '--row %s ' $names) || failed=1
done
exit $failed
