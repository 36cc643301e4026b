#!/bin/sh
# Makes an image without Docker: deploy/image.sh PROGRAM NAME:TAG OUT.tar [UID [BASE.tar]]
#
# PROGRAM is csi-cloud, csi-page or csi-edge, built for musl; OUT.tar is an OCI archive for `ctr image import`, `podman load` or
# `skopeo copy oci-archive:OUT.tar docker://…`. The same program gives the same archive, byte for byte: order, owners
# and times are fixed. The file system is that of deploy/Dockerfile. BASE.tar is a layer below the program.
set -eu
[ $# -ge 3 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
program=$1 name=$2 out=$3 base=${5:-}
command=$(basename "$program")
case $command in
    csi-cloud) user=${4:-65532} ;;
    csi-page) user=${4:-65533} ;;
    csi-edge) user=${4:-0} ;;
    *) echo "image: $command is no program of ours; give csi-cloud, csi-page or csi-edge" >&2; exit 2 ;;
esac
machine=$(od -An -t u2 -j 18 -N 2 "$program" | tr -d ' ')
case $machine in
    62) architecture=amd64 ;;
    183) architecture=arm64 ;;
    *) echo "image: $program is for machine $machine; build it for x86_64 or aarch64" >&2; exit 1 ;;
esac
# An image that holds nothing else has no loader either. A static program has no interpreter (program header 3).
if readelf -l "$program" | grep -q INTERP; then
    echo "image: $program needs a loader; build it with --target x86_64-unknown-linux-musl (or aarch64-…)" >&2
    exit 1
fi
epoch=${SOURCE_DATE_EPOCH:-0}
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

packed() { # packed DIRECTORY FILE MEMBER…: a tar that is always the same
    directory=$1 file=$2
    shift 2
    tar -C "$directory" --format=gnu --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner \
        --mode='u+rwX,go+rX,go-w' -cf "$file" "$@"
}
digest() { sha256sum "$1" | cut -d' ' -f1; }
blob() { # blob FILE: moves it to its place and prints its digest
    sum=$(digest "$1")
    mv "$1" "$work/oci/blobs/sha256/$sum"
    echo "$sum"
}

mkdir -p "$work/root/usr/bin" "$work/oci/blobs/sha256"
install -m 755 "$program" "$work/root/usr/bin/$command"
packed "$work/root" "$work/layer" usr
path=/usr/bin
[ -z "$base" ] || { cp "$base" "$work/base" && path=/usr/sbin:/usr/bin:/sbin:/bin; }
media=application/vnd.oci.image
diff_ids='' layers='' history=''
for part in base layer; do
    [ -e "$work/$part" ] || continue
    size=$(stat -c %s "$work/$part")
    sum=$(blob "$work/$part")
    diff_ids="$diff_ids${diff_ids:+,}\"sha256:$sum\""
    layers="$layers${layers:+,}{\"mediaType\":\"$media.layer.v1.tar\",\"digest\":\"sha256:$sum\",\"size\":$size}"
    history="$history${history:+,}{\"created\":\"$created\",\"created_by\":\"deploy/image.sh\"}"
done

printf '{"architecture":"%s","os":"linux","created":"%s","config":{"User":"%s:%s","Env":["PATH=%s"],"Entrypoint":["/usr/bin/%s"]},"rootfs":{"type":"layers","diff_ids":[%s]},"history":[%s]}' \
    "$architecture" "$created" "$user" "$user" "$path" "$command" "$diff_ids" "$history" > "$work/config"
config_size=$(stat -c %s "$work/config")
config=$(blob "$work/config")

printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{"mediaType":"%s.config.v1+json","digest":"sha256:%s","size":%s},"layers":[%s]}' \
    $media $media "$config" "$config_size" "$layers" > "$work/manifest"
manifest_size=$(stat -c %s "$work/manifest")
manifest=$(blob "$work/manifest")

printf '{"schemaVersion":2,"mediaType":"%s.index.v1+json","manifests":[{"mediaType":"%s.manifest.v1+json","digest":"sha256:%s","size":%s,"platform":{"architecture":"%s","os":"linux"},"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}]}' \
    $media $media "$manifest" "$manifest_size" "$architecture" "$name" "${name##*:}" > "$work/oci/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' > "$work/oci/oci-layout"
packed "$work/oci" "$work/archive" oci-layout index.json blobs
# Beside the place first: whoever looks for the archive finds it whole.
cp "$work/archive" "$out.part"
mv "$out.part" "$out"
echo "$name $architecture sha256:$manifest"
