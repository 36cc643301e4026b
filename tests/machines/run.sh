#!/bin/sh
# Installs the Debian packages on two machines, by the steps of docs/how-to/systemd.md, as they stand there:
# tests/machines/run.sh DIRECTORY (root). A machine is a small Debian that systemd-nspawn boots. It has the artefacts and
# no source. A Kubernetes is there before (kubernetes.sh); hostdir stands for the vendor's driver.
set -eu
cd "$(dirname "$0")/../.."
artifacts=$(cd "${1:?is the directory of the artefacts}" && pwd)
skip() {
    echo "tier skipped: installation on machines: $1"
    [ "${CI:-}" != true ] || exit 1
    exit 0
}
[ "$(id -u)" = 0 ] || skip 'it boots machines, which needs root'
for pair in mmdebstrap:mmdebstrap systemd-nspawn:systemd-container ip:iproute2 kubectl:kubernetes-client \
    etcd:etcd-server busybox:busybox-static openssl:openssl; do
    command -v "${pair%%:*}" >/dev/null || skip "${pair%%:*} is not installed; it is in Debian's ${pair##*:}"
done
for program in target/debug/hostdir tests/go/bin/kubelet; do
    [ -x $program ] || skip "$program is missing; make build and make tests/go/bin/kubernetes.done make it"
done
base=$PWD/target/machines/debian.tar
if [ -z "${ON_ITS_OWN:-}" ]; then
    if [ ! -e "$base" ]; then
        mkdir -p target/machines
        mmdebstrap --quiet --variant=minbase bookworm "$base.part.tar" \
            --include=systemd,systemd-sysv,dbus,containerd,containernetworking-plugins ||
            skip 'no Debian can be made here'
        mv "$base.part.tar" "$base"
    fi
    work=$(mktemp -d)
    # Control groups of pods outlive them.
    trap 'find /sys/fs/cgroup/*/edge-csi-machines -depth -type d -delete 2>/dev/null || true; rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM
    # All processes, mounts and addresses of the machines end with it.
    ON_ITS_OWN=$work unshare --net --mount --pid --fork --kill-child --mount-proc sh "$0" "$artifacts"
    exit
fi
work=$ON_ITS_OWN
ip link set lo up
# That of both machines, because a node has none on loopback.
ip address add 192.0.2.1/32 dev lo
# shellcheck source=tests/machines/kubernetes.sh
. tests/machines/kubernetes.sh

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
    cp "$artifacts"/*amd64.deb "$artifacts"/*amd64.oci.tar "$artifacts/SHA256SUMS" "$work/$1/root/artifacts/"
    # As a machine of its own may, which starts containers.
    systemd-nspawn --quiet --keep-unit --register=no --resolv-conf=off --capability=all \
        --system-call-filter='@keyring bpf' --machine="$1" --directory="$work/$1" --boot \
        > "$work/$1.log" 2>&1 < /dev/null &
    until_so 60 is_up "$1" $!
}

# Each step's commands as a file, and which machine it is for.
awk -v work="$work" '
    /^## At the cloud.s host/ { machine = "cloud"; next }
    /^## At the node/ { machine = "node-1"; next }
    /^## / { machine = "" }
    machine && !code && /^[0-9]+\. / { step = $1 + 0; print step, machine > (work "/steps") }
    machine && !code && /^ +```sh$/ { code = index($0, "`"); next }
    code && /^ +```$/ { code = 0; next }
    code { print substr($0, code) > (work "/step-" step) }
' docs/how-to/systemd.md

machine cloud
machine node-1
# What is there before Edge CSI.
control_plane
node
sidecars
trouble() { # what both machines say
    echo 'kubectl get nodes,events,pods,pvc,volumeattachments; journalctl --no-pager --lines 20' | at cloud
    echo 'journalctl --no-pager --lines 30' | at node-1
}
ready() { echo 'kubectl wait --for=condition=Ready node/node-1 --timeout=1s' | at cloud > /dev/null 2>&1; }
until_so 120 ready || { trouble >&2; exit 1; }

answers() { echo 'csi-cloud nodes' | at cloud > /dev/null 2>&1; }
begun=$(date +%s)
while read -r step machine; do
    from=$(date +%s)
    # A step without commands is to paste what an earlier one printed.
    grep -qs . "$work/step-$step" || grep -h '^ *csi-edge join' "$work"/printed-* > "$work/step-$step"
    if ! at "$machine" < "$work/step-$step" > "$work/printed-$step" 2> "$work/errors"; then
        cat "$work/step-$step" "$work/printed-$step" "$work/errors" >&2
        echo "machines: step $step failed at $machine" >&2
        trouble >&2
        exit 1
    fi
    # A unit counts as started before its program serves.
    if grep -q 'systemctl .*csi-cloud' "$work/step-$step"; then until_so 30 answers; fi
    echo "step $step at $machine: $(($(date +%s) - from)) s"
done < "$work/steps"
echo "a pod runs $(($(date +%s) - begun)) s after the first step"
cat "$work/printed-10"

# The images start by themselves, with nothing else in them.
at node-1 <<'END'
for program in csi-cloud csi-edge; do
    ctr image import --snapshotter native "$program"-[0-9]*.oci.tar > /dev/null
    image=$(ctr image list --quiet | grep "/$program:")
    ctr run --rm --snapshotter native --read-only "$image" look "/usr/bin/$program" --version
done
END

# Installed once more: a changed configuration stays, and the program that runs is the new one.
at node-1 <<'END'
before=$(systemctl show --property=MainPID csi-edge)
dpkg --install ./csi-edge_*.deb > /dev/null
[ "$(systemctl is-active csi-edge)" = active ]
[ "$(systemctl show --property=MainPID csi-edge)" != "$before" ]
grep -q csi-cloud.example /etc/edge-csi/edge.toml
END
# Removed, even with its configuration, it stops and leaves the node's identity and state.
at node-1 <<'END'
apt-get purge -y csi-edge > /dev/null
[ "$(systemctl is-active csi-edge)" != active ]
[ ! -e /etc/edge-csi/edge.toml ] && [ -e /etc/edge-csi/node.pem ] && [ -e /var/lib/edge-csi/linked ]
END
echo "installed again, and removed: all good"
