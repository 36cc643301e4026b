#!/bin/sh
# Main rows of the stand with csi-cloud of an older version, then with its csi-edge; then upgrade and rollback under
# load; then the chart's manifests over the older version's (kubectl). COMMIT is the older version. ROWS are rows in
# place of the main ones. SIDES are some of: cloud edge both deployed, and ha, which is deployed with three csi-clouds.
set -eu
cd "$(dirname "$0")/.."
rows=${ROWS:-pod pod-again block stateful-set snapshot clone expand-online edge-killed edge-cut cloud-restarts}
older=$(sh tests/older.sh "${COMMIT:?is the older version: make skew COMMIT=d95acf6b (0.2.0), or COMMIT=db421f83}")
failed=0

for side in ${SIDES:-cloud edge both deployed}; do
    tool='' names=$rows
    case $side in
        cloud) with="EDGE_CSI_CLOUD=$older/csi-cloud" ;;
        edge) with="EDGE_CSI_EDGE=$older/csi-edge" ;;
        both) with=EDGE_CSI_BOTH=1 names='upgrade rollback' ;;
        deployed) tool=manifests overlay=overlay ;;
        ha) tool=ha overlay=ha ;;
        *) echo "SIDES are some of: cloud edge both deployed ha" >&2; exit 2 ;;
    esac
    if [ -n "$tool" ]; then
        overlays=$older/../../tests/cluster/src/stand/manifests/deployed
        kubectl kustomize --load-restrictor LoadRestrictionsNone "$overlays/$overlay" >"$older/deployed.yaml"
        with="EDGE_CSI_CLOUD=$older/csi-cloud EDGE_CSI_EDGE=$older/csi-edge"
        names=deployed-upgraded
    fi
    echo "== older: $side of $COMMIT; rows: $names"
    # shellcheck disable=SC2086 # these are words
    env "EDGE_CSI_OLDER=$older" $with target/debug/cluster e2e ${tool:+--deployed "$tool"} \
        $(printf -- '--row %s ' $names) || failed=1
done
exit $failed
