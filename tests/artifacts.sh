#!/bin/sh
# Whether what deploy/artifacts.sh packs is laid out as the pages in docs install it, and is the same each time. Empty
# static programs stand in for ours, so nothing is built. `make check` runs it; `make artifacts` then looks at the real
# ones: tests/artifacts.sh DIRECTORY.
set -eu
cd "$(dirname "$0")/.."
fail() { echo "artifacts: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# What csi-edge runs for direct volumes.
tools='bin/mount bin/sh sbin/blkid sbin/e2fsck sbin/mkfs.ext4 sbin/mkfs.xfs sbin/resize2fs sbin/tune2fs sbin/xfs_repair
usr/sbin/xfs_admin usr/sbin/xfs_db'

stand_ins() { # stand_ins DIRECTORY: programs without anything in them, and a Debian of such
    printf 'module m\n' > "$work/go.mod"
    printf 'package main\n\nfunc main() {}\n' > "$work/main.go"
    mkdir -p "$1/x86_64-unknown-linux-musl/release"
    for program in csi-cloud csi-page csi-edge; do
        (cd "$work" && CGO_ENABLED=0 GOARCH=amd64 go build -o "$1/x86_64-unknown-linux-musl/release/$program" .)
    done
    mkdir -p "$work/debian/bin" "$work/debian/sbin" "$work/debian/usr/sbin"
    for tool in $tools; do : > "$work/debian/$tool"; done
    tar -C "$work/debian" -cf "$1/x86_64-unknown-linux-musl/debian.tar" .
}
direct() { # direct IMAGE: csi-edge, and below it the programs that it runs for direct volumes
    rm -rf "$work/image"
    mkdir -p "$work/image"
    tar -C "$work/image" -xf "$1"
    jq -r '.manifests[0].digest' "$work/image/index.json" > "$work/digest"
    layers=$(jq -r '.layers[].digest' "$work/image/blobs/sha256/$(sed s/sha256:// "$work/digest")")
    for layer in $layers; do tar -tf "$work/image/blobs/sha256/${layer#sha256:}"; done | sed 's,^\./,,' > "$work/files"
    for file in usr/bin/csi-edge $tools; do
        grep -qx "$file" "$work/files" || fail "$1 has no /$file"
    done
}
expect() { # expect WHAT EXPECTED FOUND
    [ "$2" = "$3" ] || fail "$1: expected
$2
found
$3"
}
package() { # package FILE PROGRAM CONFIGURATION MODE [FURTHER]: what a Debian package has, and does on its own
    deb=$1
    shift
    expect "files of $deb" "$(printf '%s\n' "$3 ./etc/edge-csi/$2" "-rwxr-xr-x ./usr/bin/$1" \
        "-rw-r--r-- ./usr/lib/systemd/system/$1.service" "-rw-r--r-- ./usr/share/doc/$1/copyright" \
        ${4:+"-rw-r--r-- ./usr/share/doc/$1/$4"} | sort)" \
        "$(dpkg-deb --contents "$deb" | awk '/^-/ { print $1, $6 }' | sort)"
    if dpkg-deb --contents "$deb" | grep -v ' 0/0 '; then fail "of $deb, these are not root's"; fi
    rm -rf "$work/control" "$work/root"
    dpkg-deb --control "$deb" "$work/control"
    dpkg-deb --extract "$deb" "$work/root"
    expect "conffiles of $deb" "/etc/edge-csi/$2" "$(cat "$work/control/conffiles")"
    # The program and the configuration of the package are what its unit starts.
    expect "ExecStart of $deb" "ExecStart=/usr/bin/$1 serve --config /etc/edge-csi/$2" \
        "$(grep ^ExecStart= "$work/root/usr/lib/systemd/system/$1.service")"
    # Nobody has configured it yet. It is started again if it runs, and enabled again if it was installed before.
    expect "actions of $deb" "$(printf '%s\n' 'deb-systemd-invoke stop' 'deb-systemd-invoke try-restart')" \
        "$(grep -ho 'deb-systemd-invoke [^ ]*' "$work/control"/p* | sort -u)"
    expect "enabling by $deb" "if deb-systemd-helper debian-installed $1.service; then" \
        "$(grep -B99 'deb-systemd-helper enable' "$work/control/postinst" | grep -o 'if deb-systemd-helper debian-installed.*')"
}
page_package() { # page_package FILE: csi-page has no configuration file, and a directory for the socket view
    expect "files of $1" "$(printf '%s\n' '-rwxr-xr-x ./usr/bin/csi-page' \
        '-rw-r--r-- ./usr/lib/systemd/system/csi-page.service' '-rw-r--r-- ./usr/lib/tmpfiles.d/csi-page.conf' \
        '-rw-r--r-- ./usr/share/doc/csi-page/copyright' | sort)" \
        "$(dpkg-deb --contents "$1" | awk '/^-/ { print $1, $6 }' | sort)"
    rm -rf "$work/control"
    dpkg-deb --control "$1" "$work/control"
    grep -q 'useradd .* edge-csi-page$' "$work/control/postinst" || fail "$1 makes no user"
}
static() { # static PROGRAM: it needs no other file, and names none of this machine
    if readelf -l "$1" | grep INTERP; then fail "$1 needs a loader"; fi
    for path in "$PWD" "$HOME"; do
        if grep -aqF "$path/" "$1"; then fail "$1 names $path"; fi
    done
}

if [ $# -gt 0 ]; then
    out=$1
    for program in csi-cloud csi-page csi-edge; do
        for archive in "$out/$program"-*.tar.gz; do
            tar -C "$work" -xf "$archive"
            static "$work/$(basename "$archive" .tar.gz)/$program"
        done
    done
else
    out=$work/one
    stand_ins "$work/target"
    export BUILT=1 CARGO_TARGET_DIR="$work/target"
    deploy/artifacts.sh "$out" >/dev/null
    # Whatever the rights and the times of files, and wherever and when it is packed.
    (umask 077 && touch -d 2001-01-01 "$work"/target/*/release/* && TZ=Asia/Tokyo deploy/artifacts.sh "$work/two" >/dev/null)
    diff -rq "$out" "$work/two" || fail 'the second time, these are different'
fi
(cd "$out" && sha256sum --quiet --check SHA256SUMS)
for file in "$out"/csi-cloud_*.deb; do package "$file" csi-cloud cloud.toml -rw-r--r--; done
for file in "$out"/csi-page_*.deb; do page_package "$file"; done
for file in "$out"/csi-edge_*.deb; do package "$file" csi-edge edge.toml -rw-r----- direct.conf; done
for image in "$out"/csi-edge-direct-*.oci.tar; do direct "$image"; done
for image in "$out"/csi-edge-nri-*.oci.tar; do
    expect "name in $image" csi-edge-nri "$(tar -xOf "$image" index.json | jq -r '.manifests[0].annotations["io.containerd.image.name"]' | sed 's/.*\///; s/:.*//')"
done
if grep -nE 'path\+file|/home/|/root/' "$out"/*.cdx.json; then fail 'an SBOM names paths of this machine'; fi
tar -C "$work" -xf "$out"/edge-csi-*.tgz
diff -rq deploy/helm/edge-csi "$work/edge-csi" || fail 'the packed chart is another one'
if find "$work/edge-csi" -type l | grep .; then fail 'the packed chart has links'; fi
