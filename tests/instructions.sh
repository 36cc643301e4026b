#!/bin/sh
# Counts the instructions of csi-cloud and csi-edge for a fixed number of calls, with callgrind.
# Takes directories that hold release builds of both; prints a line for each and number of callers.
set -eu
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "instructions: valgrind is missing" >&2; exit 1; }
tools=target/debug
lives=${LIVES:-200}
work=$(mktemp -d)
pids=
end() {
    # shellcheck disable=SC2086 # a list of processes that this script started
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT INT TERM

until_there() {
    tries=0
    until eval "$1"; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || { echo "instructions: no $2 after 60 s" >&2; exit 1; }
        sleep 0.1
    done
}

# Calls in all, and instructions of both programs from start to end.
count() {
    bin=$1 callers=$2 each=$3
    run=$(mktemp -d "$work/run.XXXXXX")
    mkdir -p "$run/fronts"
    grind="valgrind --quiet --tool=callgrind --callgrind-out-file"
    "$bin/csi-cloud" ca init --dir "$run/pki" --host 127.0.0.1 >/dev/null
    "$bin/csi-cloud" ca issue node-1 --dir "$run/pki" >/dev/null
    "$tools/testdriver" --endpoint "unix://$run/driver.sock" --node-id node-1 >"$run/driver.log" 2>&1 &
    driver=$!
    $grind="$run/cloud.out" "$bin/csi-cloud" serve --listen wss://127.0.0.1:0 --workers 1 \
        --driver "$name" --fronts "$run/fronts" --store memory: --ca "$run/pki/ca.crt" \
        --cert "$run/pki/cloud.crt" --key "$run/pki/cloud.key" >"$run/cloud.log" 2>&1 &
    cloud=$!
    pids="$pids $driver $cloud"
    until_there "grep -q '^listening' $run/cloud.log" csi-cloud
    address=$(sed -n 's/^listening //p' "$run/cloud.log")
    $grind="$run/edge.out" "$bin/csi-edge" serve --cloud "$address" --workers 1 \
        --driver "$name=$run/driver.sock" --ca "$run/pki/ca.crt" --cert "$run/pki/node-1.crt" \
        --key "$run/pki/node-1.key" >"$run/edge.log" 2>&1 &
    edge=$!
    pids="$pids $edge"
    until_there "grep -q linked $run/cloud.log" link
    "$tools/bench" lives --front "$run/fronts/$name.sock" --callers "$callers" --lives "$each" >"$run/calls"
    kill "$edge" && wait "$edge" || true
    kill "$cloud" && wait "$cloud" || true
    kill "$driver" && wait "$driver" || true
    echo "$(cat "$run/calls") $(total "$run/cloud.out") $(total "$run/edge.out")"
}

total() {
    sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$1" | tail -1
}

name=${DRIVER:-test.edge-csi.io}
printf '%-40s %8s %14s %14s\n' programs callers 'cloud/call' 'edge/call'
for bin in "$@"; do
    for callers in 1 16; do
        # The difference of two runs is without start and end.
        few=$(count "$bin" "$callers" $((lives / callers / 4)))
        many=$(count "$bin" "$callers" $((lives / callers)))
        echo "$few $many" | awk -v bin="$bin" -v callers="$callers" '{
            printf "%-40s %8d %14.0f %14.0f\n", bin, callers, ($5 - $2) / ($4 - $1), ($6 - $3) / ($4 - $1) }'
    done
done
