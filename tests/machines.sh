#!/bin/sh
# Installs the Debian packages on two machines, by the steps of docs/operations.md, "With systemd", as they stand there:
# tests/machines.sh DIRECTORY (root). A machine is a small Debian that systemd-nspawn boots, with the artefacts and no
# source. hostdir stands for the vendor's driver. At the end csi-sanity makes volumes through both.
set -eu
cd "$(dirname "$0")/.."
artifacts=$(cd "${1:?is the directory of the artefacts}" && pwd)
skip() {
    echo "tier skipped: installation on machines: $1"
    [ "${CI:-}" != true ] || exit 1
    exit 0
}
[ "$(id -u)" = 0 ] || skip 'it boots machines, which needs root'
for pair in mmdebstrap:mmdebstrap systemd-nspawn:systemd-container ip:iproute2; do
    command -v "${pair%%:*}" >/dev/null || skip "${pair%%:*} is not installed; it is in Debian's ${pair##*:}"
done
for program in target/debug/hostdir tests/go/bin/csi-sanity; do
    [ -x $program ] || skip "$program is missing; make build and make tests/go/bin/.done make it"
done
base=$PWD/target/machines/debian.tar
if [ -z "${ON_ITS_OWN:-}" ]; then
    if [ ! -e "$base" ]; then
        mkdir -p target/machines
        mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus bookworm "$base.part.tar" ||
            skip 'no Debian can be made here'
        mv "$base.part.tar" "$base"
    fi
    # Whatever happens, no process, mount or address of the machines is left.
    ON_ITS_OWN=yes exec unshare --net --mount --pid --fork --kill-child --mount-proc sh "$0" "$artifacts"
fi
ip link set lo up
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

until_so() { # until_so SECONDS COMMAND…
    tries=$1
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { echo "machines: in vain: $*" >&2; return 1; }
        sleep 1
    done
}
at() { # at MACHINE: runs a script on it, in the directory of the artefacts
    nsenter --target "$(cat "$work/$1.leader")" --all sh -euc 'cd /root/artifacts && . /dev/stdin'
}
is_up() { # is_up MACHINE NSPAWN
    pgrep --parent "$2" > "$work/$1.leader" && echo 'systemctl is-active --quiet multi-user.target' | at "$1" 2>/dev/null
}
machine() { # machine NAME: boots one
    mkdir -p "$work/$1/root/artifacts"
    tar -C "$work/$1" -xf "$base"
    echo "$1" > "$work/$1/etc/hostname"
    echo '127.0.0.1 localhost csi-cloud.example' > "$work/$1/etc/hosts"
    cp "$artifacts"/*.deb "$artifacts/SHA256SUMS" "$work/$1/root/artifacts/"
    cp target/debug/hostdir tests/go/bin/csi-sanity "$work/$1/opt/"
    systemd-nspawn --quiet --keep-unit --register=no --resolv-conf=off --machine="$1" --directory="$work/$1" --boot \
        > "$work/$1.log" 2>&1 < /dev/null &
    until_so 60 is_up "$1" $!
}

# Each step's commands as a file, and which machine it is for.
awk -v work="$work" '
    /^### With systemd/ { on = 1; next }
    on && /^#/ { exit }
    on && /^[0-9]+\. / {
        step = $1 + 0
        if (/At the cloud.s host/) machine = "cloud"
        if (/At the node/) machine = "node-1"
        print step, machine > (work "/steps")
    }
    on && step && (/^       / || !NF) { print substr($0, step > 9 ? 9 : 8) > (work "/step-" step) }
' docs/operations.md

machine cloud
machine node-1
echo "mkdir -p /var/lib/kubelet/plugins/hostdir.edge-csi.io
    systemd-run --quiet /opt/hostdir --name hostdir.edge-csi.io --node-id node-1 --state /var/lib/hostdir \
    --endpoint unix:///var/lib/kubelet/plugins/hostdir.edge-csi.io/csi.sock" | at node-1

begun=$(date +%s)
while read -r step machine; do
    from=$(date +%s)
    # A step without commands is to paste what an earlier one printed.
    grep -q . "$work/step-$step" || grep -h '^ *csi-edge join' "$work"/printed-* > "$work/step-$step"
    if ! at "$machine" < "$work/step-$step" > "$work/printed-$step" 2> "$work/errors"; then
        cat "$work/step-$step" "$work/printed-$step" "$work/errors" >&2
        echo "machines: step $step failed at $machine" >&2
        exit 1
    fi
    echo "step $step at $machine: $(($(date +%s) - from)) s"
done < "$work/steps"
linked() { echo 'csi-cloud nodes' | at cloud | grep -q '^node-1 *linked'; }
is_served() { echo 'csi-edge drivers' | at node-1 | grep -q '^hostdir.edge-csi.io *up'; }
until_so 60 linked
until_so 60 is_served
echo "node and driver are up $(($(date +%s) - begun)) s after the first step"
echo 'csi-cloud nodes; csi-cloud drivers' | at cloud
echo '/opt/csi-sanity --csi.endpoint /run/edge-csi/hostdir.edge-csi.io.sock --ginkgo.no-color \
    --ginkgo.focus "CreateVolume.* should return appropriate values"' | at cloud
echo "volumes made $(($(date +%s) - begun)) s after the first step"
for program in csi-cloud csi-edge; do
    case $program in csi-cloud) machine=cloud ;; *) machine=node-1 ;; esac
    echo "systemctl show -p ActiveState,NRestarts $program && systemd-analyze security --no-pager $program | tail -n 1" | at $machine
done
