#!/bin/sh
# Runs a program that starts guests, with a kernel for them: Debian's cloud kernel, whose package is unpacked into
# target/guest and never installed. Where that cannot be, the tier is skipped and the reason said.
set -eu
cd "$(dirname "$0")/.."
kernel=target/guest/kernel

skip() {
    echo "tier skipped: a real guest: $1"
    [ "${CI:-}" != true ] || exit 1
    exit 0
}

[ "$(id -u)" = 0 ] || skip "loop devices and formatting need root"
[ "$(uname -m)" = x86_64 ] || skip "it knows the kernel for x86_64 only"
for pair in qemu-system-x86_64:qemu-system-x86 mkfs.ext4:e2fsprogs resize2fs:e2fsprogs \
    mkfs.xfs:xfsprogs xfs_growfs:xfsprogs losetup:mount setpriv:util-linux strip:binutils ldd:libc-bin; do
    command -v "${pair%%:*}" >/dev/null || skip "${pair%%:*} is not installed; it is in Debian's ${pair##*:}"
done

if [ ! -e "$kernel/boot" ]; then
    command -v apt-get >/dev/null || skip "the kernel comes from Debian's packages, and there is no apt-get here"
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }')
    [ -n "$package" ] || skip "apt does not know linux-image-cloud-amd64; is this Debian, and was apt-get update run?"
    # Unpacked beside, so that it is there as a whole or not at all.
    new=$kernel.new
    rm -rf "$new" && mkdir -p "$new"
    # In a directory of its own that apt's user may write to: it downloads as that, and complains otherwise.
    down=$(mktemp -d)
    chmod 755 "$down" && { chown _apt "$down" 2>/dev/null || true; }
    (cd "$down" && apt-get download -qq "$package") || { rm -rf "$down"; skip "$package cannot be downloaded; apt-get update may help"; }
    dpkg -x "$down"/*.deb "$new"
    rm -rf "$down" "$kernel"
    mv "$new" "$kernel"
fi
exec "$@"
