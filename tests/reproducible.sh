#!/bin/sh
# Makes the artefacts of the commit twice, from nothing, and compares them byte for byte:
# tests/reproducible.sh OUT [ARCHITECTURE…]. Two clones have other paths, rights, time zones and homes of Cargo. The
# machine and its tools are the same. OUT gets the first ones.
set -eu
out=$1
shift
cd "$(dirname "$0")/.."
git diff --quiet HEAD || echo "reproducible: what is not committed is not built" >&2
work=$PWD/target/reproducible
rm -rf "$work" "$out"
mkdir -p "$work"

made() { # made CLONE ARCHITECTURE…: prints nothing unless it fails
    clone=$work/$1
    shift
    git clone --quiet --shared . "$clone"
    if ! "$clone/deploy/artifacts.sh" "$clone/out" "$@" > "$clone/log" 2>&1; then
        tail -n 30 "$clone/log" >&2
        exit 1
    fi
}
made one "$@"
(
    umask 077
    # What is in it was downloaded from the same registry.
    mkdir -p "$work/home"
    ln -s "${CARGO_HOME:-$HOME/.cargo}"/* "$work/home/"
    export CARGO_HOME="$work/home" TZ=Asia/Tokyo
    made another/path/of/two "$@"
)
diff -rq "$work/one/out" "$work/another/path/of/two/out" || { echo "reproducible: these are different; see $work" >&2; exit 1; }
mv "$work/one/out" "$out"
rm -rf "$work"
cat "$out/SHA256SUMS"
echo "reproducible: twice the same"
