#!/bin/sh
# Runs the rows of `make e2e` on several stands at once, a part on each: stands.sh COUNT, then what else
# `cluster e2e` takes. Each row's line is printed when it ends, whichever stand it ran on.
set -eu
count=$1
shift
stands=
for number in $(seq "$count"); do
    target/debug/cluster e2e --part "$number/$count" "$@" &
    stands="$stands $!"
done
failed=0
for stand in $stands; do
    wait "$stand" || failed=1
done
exit "$failed"
