#!/bin/sh
# Publishes what deploy/artifacts.sh made: deploy/release.sh ARTIFACTS REGISTRY [NOTES]
#
# Each image is pushed for all its architectures under one name, REGISTRY/NAME:VERSION, and the chart to REGISTRY/charts.
# With SIGN=1 images and SHA256SUMS are signed without keys, by the identity of the workflow that runs this. NOTES gets
# the version's part of the changelog. With INSECURE=1 the registry speaks HTTP. Needs crane, helm, jq; to sign, cosign.
set -eu
[ $# -ge 2 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
artifacts=$(cd "$1" && pwd) registry=$2 notes=${3:-}
cd "$(dirname "$0")/.."
for command in crane helm jq ${SIGN:+cosign}; do
    command -v "$command" >/dev/null || { echo "release: $command is missing" >&2; exit 1; }
done
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
if [ -n "${TAG:-}" ] && [ "$TAG" != "v$version" ]; then
    echo "release: the tag is $TAG, and Cargo.toml has $version; tag the commit v$version" >&2
    exit 1
fi
section=$(awk -v head="## $version - " 'index($0, "## ") == 1 { on = index($0, head) == 1; next } on' CHANGELOG.md)
if [ -z "$section" ]; then
    echo "release: CHANGELOG.md has no section '## $version - DATE'; write it, with what users notice" >&2
    exit 1
fi
[ -z "$notes" ] || printf '%s\n' "$section" > "$notes"
(cd "$artifacts" && sha256sum --quiet --check SHA256SUMS)

insecure=${INSECURE:+--insecure}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
crane() { # its progress is of interest only when it fails
    command crane "$@" 2>"$work/crane" || { cat "$work/crane" >&2; return 1; }
}
signed() { # signed REFERENCE: by its digest, which no later push changes
    [ -z "${SIGN:-}" ] || cosign sign --yes "$1@$(crane digest $insecure "$1")"
}
for image in csi-cloud csi-page csi-edge csi-edge-nri csi-edge-direct; do
    name=$registry/$image:$version
    set --
    for archive in "$artifacts/$image-$version-"*.oci.tar; do
        [ -e "$archive" ] || { echo "release: $artifacts has no image $image of $version" >&2; exit 1; }
        architecture=$(basename "$archive" .oci.tar)
        architecture=${architecture##*-}
        mkdir "$work/layout"
        tar -C "$work/layout" -xf "$archive"
        crane push $insecure "$work/layout" "$name-$architecture" >/dev/null
        rm -r "$work/layout"
        set -- "$@" --manifest "$name-$architecture"
    done
    crane index append $insecure --tag "$name" "$@" >/dev/null
    echo "pushed $name: $(crane manifest $insecure "$name" | jq -r '[.manifests[].platform.architecture] | join(", ")')"
    signed "$registry/$image:$version"
done
helm push ${INSECURE:+--plain-http} "$artifacts/edge-csi-$version.tgz" "oci://$registry/charts"
signed "$registry/charts/edge-csi:$version"
[ -z "${SIGN:-}" ] || cosign sign-blob --yes --bundle "$artifacts/SHA256SUMS.sigstore.json" "$artifacts/SHA256SUMS"
