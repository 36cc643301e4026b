#!/bin/sh
# Runs deploy/release.sh against a registry of its own, with small images of two architectures in place of ours. Nothing is
# signed: that needs the identity of a hosted workflow.
set -eu
cd "$(dirname "$0")/.."
PATH=$PWD/tests/go/bin:$PATH
for command in crane helm actionlint; do
    command -v $command >/dev/null || { echo "tier skipped: release: $command is not built; it needs Go"; exit 0; }
done
actionlint .github/workflows/*.yml
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
work=$(mktemp -d)
registry=
end() {
    [ -z "$registry" ] || kill "$registry" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT INT TERM

# A static program, and the same with another machine in its header.
mkdir "$work/amd64" "$work/arm64" "$work/artifacts"
for program in csi-cloud csi-page csi-edge; do
    cp /bin/busybox "$work/amd64/$program"
    cp /bin/busybox "$work/arm64/$program"
    printf '\267' | dd of="$work/arm64/$program" bs=1 seek=18 conv=notrunc status=none
done
for architecture in amd64 arm64; do
    for image in csi-cloud csi-page csi-edge csi-edge-nri csi-edge-direct; do
        program=$image
        case $image in csi-edge-*) program=csi-edge ;; esac
        deploy/image.sh "$work/$architecture/$program" "docker.io/library/$image:$version" \
            "$work/artifacts/$image-$version-$architecture.oci.tar" >/dev/null
    done
done
tar -C deploy/helm -czf "$work/artifacts/edge-csi-$version.tgz" edge-csi
(cd "$work/artifacts" && sha256sum -- * > ../sums && mv ../sums SHA256SUMS)

crane registry serve --address 127.0.0.1:0 > "$work/registry.log" 2>&1 &
registry=$!
tries=0
until port=$(sed -n 's/.*serving on port \([0-9]*\).*/\1/p' "$work/registry.log") && [ -n "$port" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { cat "$work/registry.log" >&2; exit 1; }
    sleep 0.1
done
address=127.0.0.1:$port
INSECURE=1 TAG=v$version deploy/release.sh "$work/artifacts" "$address/edge-csi" "$work/notes.md"

failed=0
for image in csi-cloud csi-page csi-edge csi-edge-nri csi-edge-direct; do
    for architecture in amd64 arm64; do
        found=$(crane config --insecure --platform "linux/$architecture" "$address/edge-csi/$image:$version" | jq -r .architecture)
        [ "$found" = "$architecture" ] || { echo "release: $image for $architecture is for $found" >&2; failed=1; }
    done
done
helm show chart --plain-http "oci://$address/edge-csi/charts/edge-csi" --version "$version" | grep -qx "version: $version" || failed=1
grep -q . "$work/notes.md" || { echo "release: there are no notes" >&2; failed=1; }
# Another tag, and a changed file, are refused before anything is pushed.
! INSECURE=1 TAG=v0.0.0 deploy/release.sh "$work/artifacts" "$address/other" 2>/dev/null || { echo "release: took a wrong tag" >&2; failed=1; }
echo >> "$work/artifacts/edge-csi-$version.tgz"
! INSECURE=1 deploy/release.sh "$work/artifacts" "$address/other" 2>/dev/null || { echo "release: took a changed file" >&2; failed=1; }
[ "$(crane catalog --insecure "$address" | grep -c '^other/' || true)" = 0 ] || { echo "release: pushed something wrong" >&2; failed=1; }
[ "$failed" = 0 ] && echo "a release was pushed for two architectures, with its chart and notes"
exit "$failed"
