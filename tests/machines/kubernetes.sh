# A Kubernetes for tests/machines/run.sh, which reads this: the least that runs a pod on a node with a driver. It is
# what somebody has before Edge CSI comes. One token may do everything, since the rights of Edge CSI are tested elsewhere.
# shellcheck shell=sh disable=SC2154 # work is the caller's

kubeconfig() {
    cat <<END
apiVersion: v1
kind: Config
clusters: [{name: it, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: it, user: {token: machines}}]
contexts: [{name: it, context: {cluster: it, user: it}}]
current-context: it
END
}
box() { # box FILE: an image of Debian's static busybox, also for the pods' sandboxes
    mkdir -p "$work/box/root/bin"
    cp /bin/busybox "$work/box/root/bin/"
    ln -s busybox "$work/box/root/bin/sleep"
    tar -C "$work/box/root" -cf "$work/box/layer.tar" bin
    sum=$(sha256sum "$work/box/layer.tar" | cut -d' ' -f1)
    printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin"],"Cmd":["sleep","1000000"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$sum" > "$work/box/config.json"
    printf '[{"Config":"config.json","RepoTags":["docker.io/library/busybox:1.37"],"Layers":["layer.tar"]}]' > "$work/box/manifest.json"
    tar -C "$work/box" -cf "$1" config.json manifest.json layer.tar
}
control_plane() { # on the machine `cloud`
    to=$work/cloud/opt
    cp /usr/bin/etcd tests/go/bin/kube-apiserver tests/go/bin/kube-controller-manager tests/go/bin/kube-scheduler \
        tests/go/bin/csi-provisioner tests/go/bin/csi-attacher "$to/"
    cp "$(command -v kubectl)" "$work/cloud/usr/local/bin/kubectl"
    echo 'machines,admin,admin,system:masters' > "$to/tokens"
    openssl ecparam -name prime256v1 -genkey -noout -out "$to/accounts.key"
    openssl ec -in "$to/accounts.key" -pubout -out "$to/accounts.pub" 2>/dev/null
    mkdir -p "$work/cloud/root/.kube"
    kubeconfig | tee "$to/kubeconfig" > "$work/cloud/root/.kube/config"
    at cloud <<'END'
run() { systemd-run --quiet --unit="$1" --working-directory=/opt "/opt/$@"; }
run etcd --data-dir=/var/lib/etcd --unsafe-no-fsync
run kube-apiserver --etcd-servers=http://127.0.0.1:2379 --service-cluster-ip-range=10.0.0.0/24 --secure-port=6443 \
    --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --endpoint-reconciler-type=none --cert-dir=/opt/certs \
    --token-auth-file=/opt/tokens --authorization-mode=RBAC --allow-privileged=true \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=/opt/accounts.pub \
    --service-account-signing-key-file=/opt/accounts.key
run kube-controller-manager --kubeconfig=/opt/kubeconfig --service-account-private-key-file=/opt/accounts.key \
    --leader-elect=false --bind-address=127.0.0.1 --cert-dir=/opt/certs
run kube-scheduler --kubeconfig=/opt/kubeconfig --leader-elect=false --bind-address=127.0.0.1 --cert-dir=/opt/certs
END
}
sidecars() { # as somebody starts them who has no pods in the cloud; they wait for their socket
    at cloud <<'END'
for sidecar in csi-provisioner csi-attacher; do
    more=
    [ $sidecar != csi-provisioner ] || more='--strict-topology --extra-create-metadata --feature-gates=Topology=true'
    systemd-run --quiet --unit=$sidecar --property=Restart=always --property=RestartSec=1 \
        --property=StartLimitIntervalSec=0 /opt/$sidecar \
        --kubeconfig=/opt/kubeconfig --csi-address=/run/edge-csi/hostdir.edge-csi.io.sock --timeout=60s $more
done
END
}
node() { # containerd, the kubelet, a driver and its registrar on the machine `node-1`
    cp tests/go/bin/kubelet tests/go/bin/registrar target/debug/hostdir "$work/node-1/opt/"
    kubeconfig > "$work/node-1/opt/kubeconfig"
    box "$work/node-1/opt/box.tar"
    at node-1 <<'END'
# Kubelet and runtime make control groups below their own ones. The machine's are read-only at first.
for group in /sys/fs/cgroup/*; do mount -o remount,rw,bind "$group"; done
mount --make-rshared /
# The kernel's settings are read-only here, and are this host's. The kubelet finds them as it wants them.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/opt/$(echo "${setting%=*}" | tr / .)
    echo "${setting#*=}" > "$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done
# The kubelet reads there that memory is short.
ln -s /dev/null /dev/kmsg
mkdir -p /etc/cni/net.d /etc/containerd /var/lib/kubelet/plugins/hostdir.edge-csi.io
cat > /etc/cni/net.d/10-pods.conflist <<'JSON'
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "ipam":
  {"type": "host-local", "subnet": "198.18.1.0/24"}}]}
JSON
cat > /etc/containerd/config.toml <<'TOML'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/busybox:1.37"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
TOML
systemctl restart containerd
ctr --namespace k8s.io image import --snapshotter native /opt/box.tar > /dev/null
cat > /opt/kubelet.yaml <<'YAML'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /edge-csi-machines
cgroupsPerQOS: false
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
address: 127.0.0.1
failSwapOn: false
evictionHard: {}
makeIPTablesUtilChains: false
YAML
run() {
    systemd-run --quiet --unit="$1" --property=Restart=always --property=RestartSec=1 \
        --property=StartLimitIntervalSec=0 "/opt/$@"
}
run kubelet --config=/opt/kubelet.yaml --kubeconfig=/opt/kubeconfig --hostname-override=node-1 --node-ip=192.0.2.1
run hostdir --name hostdir.edge-csi.io --node-id node-1 --state /var/lib/hostdir \
    --endpoint unix:///var/lib/kubelet/plugins/hostdir.edge-csi.io/csi.sock
run registrar -driver=hostdir.edge-csi.io -endpoint=/run/edge-csi/hostdir.edge-csi.io.sock \
    -listen=/var/lib/kubelet/plugins_registry/hostdir.edge-csi.io-reg.sock
END
}
