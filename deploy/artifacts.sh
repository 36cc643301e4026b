#!/bin/sh
# Makes what Edge CSI is installed from: deploy/artifacts.sh OUT [ARCHITECTURE…]
#
# For each architecture (amd64, arm64; by default amd64) OUT gets the programs: as an archive, a Debian package and an
# image. Beside them are the Helm chart, an SBOM of each program, what all was built with, and SHA256SUMS. The same commit,
# tools and packages of Debian give the same bytes at any path. With BUILT=1 what is built in CARGO_TARGET_DIR is taken.
set -eu
[ $# -ge 1 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- amd64
cd "$(dirname "$0")/.."

need() { # need COMMAND HOW: says how to get what is missing
    command -v "$1" >/dev/null || { echo "artifacts: $1 is missing; get it with: $2" >&2; exit 1; }
}
need cargo-deb 'make tools'
need cargo-sbom 'make tools'
need jq 'apt-get install jq'
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
for field in version appVersion; do
    grep -qx "$field: $version" deploy/helm/edge-csi/Chart.yaml || {
        echo "artifacts: Chart.yaml has another $field than Cargo.toml, $version; make them the same" >&2
        exit 1
    }
done
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/artifacts-build}
# No path of this machine is in a program. Symbols stay, for backtraces.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$PWD=. --remap-path-prefix=$cargo_home=cargo -C target-feature=+crt-static"
CFLAGS="-ffile-prefix-map=$PWD=. -ffile-prefix-map=$cargo_home=cargo"
# Debug information would not stay, and its paths decide how ThinLTO names local symbols. The library's goes, too.
CARGO_PROFILE_RELEASE_DEBUG=0
CARGO_PROFILE_RELEASE_STRIP=debuginfo
CARGO_INCREMENTAL=0
export SOURCE_DATE_EPOCH CARGO_TARGET_DIR RUSTFLAGS CFLAGS CARGO_INCREMENTAL
export CARGO_PROFILE_RELEASE_DEBUG CARGO_PROFILE_RELEASE_STRIP

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

triple() { # triple ARCHITECTURE
    case $1 in
        amd64) echo x86_64-unknown-linux-musl ;;
        arm64) echo aarch64-unknown-linux-musl ;;
        *) echo "artifacts: $1 is no architecture of ours; give amd64 or arm64" >&2; exit 2 ;;
    esac
}
packed() { # packed DIRECTORY MEMBER OUT: a tar that is always the same; symbolic links are followed
    tar -C "$1" --dereference --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
        --numeric-owner --mode='u+rwX,go+rX,go-w' -cf - "$2" | gzip -n9 > "$3"
}
build() { # build TRIPLE
    rustc --print target-libdir --target "$1" | xargs test -d ||
        { echo "artifacts: Rust's library for $1 is missing; get it with: rustup target add $1" >&2; exit 1; }
    case $1 in
        x86_64-*) need musl-gcc 'apt-get install musl-tools' ;;
        aarch64-*)
            # Debian's name of it, which the crates of C code look for. Rust brings what is linked.
            need aarch64-linux-musl-gcc 'apt-get install gcc-aarch64-linux-gnu musl-dev:arm64'
            export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=aarch64-linux-gnu-gcc
            ;;
    esac
    # By themselves, so that nothing which tests switch on is in them. mimalloc has the time of its compilation in it,
    # and cargo does not compile it anew for another commit. So it is the same for all.
    SOURCE_DATE_EPOCH=0 cargo build --locked --release -p cloud -p page -p edge --target "$1"
}
debian() { # debian ARCHITECTURE OUT: what csi-edge runs for direct volumes, as in deploy/Dockerfile; nothing is configured
    need mmdebstrap 'apt-get install mmdebstrap'
    # xfs_admin is a script.
    mmdebstrap --quiet --variant=extract --architectures="$1" --include=e2fsprogs,xfsprogs,util-linux,mount,dash \
        bookworm "$2.part.tar"
    mv "$2.part.tar" "$2"
}
pack() { # pack CRATE PROGRAM CONFIGURATION ARCHITECTURE
    program=$CARGO_TARGET_DIR/$(triple "$4")/release/$2
    name=$2-$version-$4
    mkdir -p "$work/$name"
    cp "$program" "$3" "deploy/systemd/$2.service" LICENSE "$work/$name/"
    packed "$work" "$name" "$out/$name.tar.gz"
    cargo deb --quiet --locked --no-build --no-strip -p "$1" --target "$(triple "$4")" --output "$out/"
    deploy/image.sh "$program" "docker.io/library/$2:$version" "$out/$name.oci.tar" >/dev/null
}
sbom() { # sbom CRATE PROGRAM: cargo-sbom draws the order and the number; the time is that of the commit
    cargo sbom --output-format cyclone_dx_json_1_6 --cargo-package "$1" |
        jq -S --arg created "$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)" '
            del(.serialNumber) | .metadata.timestamp = $created | .components |= sort_by(.["bom-ref"])
            | .dependencies |= (map(.dependsOn |= sort?) | sort_by(.ref))' > "$out/$2-$version.cdx.json"
}

for architecture; do
    debian=$CARGO_TARGET_DIR/$(triple "$architecture")/debian.tar
    [ -n "${BUILT:-}" ] || { build "$(triple "$architecture")" && debian "$architecture" "$debian"; }
    pack cloud csi-cloud deploy/cloud.toml "$architecture"
    pack page csi-page deploy/systemd/csi-page.tmpfiles "$architecture"
    pack edge csi-edge deploy/edge.toml "$architecture"
    edge=$CARGO_TARGET_DIR/$(triple "$architecture")/release/csi-edge
    for image in csi-edge-nri csi-edge-direct; do
        base=''
        [ $image = csi-edge-nri ] || base=$debian
        deploy/image.sh "$edge" "docker.io/library/$image:$version" "$out/$image-$version-$architecture.oci.tar" 0 "$base" >/dev/null
    done
done
packed deploy/helm edge-csi "$out/edge-csi-$version.tgz"
sbom cloud csi-cloud
sbom page csi-page
sbom edge csi-edge
{
    echo "commit $(git describe --always --dirty --abbrev=40 --exclude '*')"
    rustc --version
    cargo-deb --version | sed 's/^/cargo-deb /'
    for compiler in musl-gcc aarch64-linux-musl-gcc; do
        ! command -v $compiler >/dev/null || $compiler --version | head -n 1
    done
} > "$out/built-with.txt"
(cd "$out" && rm -f SHA256SUMS && sha256sum -- * > "$work/sums" && mv "$work/sums" SHA256SUMS && cat SHA256SUMS)
