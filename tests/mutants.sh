#!/bin/sh
# Shows that the simulation can fail. Each patch in tests/mutations breaks a promise in a copy of our code, and the
# simulation must find out. Names given as arguments are the patches to try; without any, all.
set -eu
cd "$(dirname "$0")/.."
work=$PWD/target/mutants
seeds=${SEEDS:-1000}
mkdir -p "$work"
export CARGO_TARGET_DIR="$work/target"
[ $# -gt 0 ] || set -- $(cd tests/mutations && ls -- *.patch | sed 's/\.patch$//')

# Only what changed is written, so that little is built again.
fresh() {
    git ls-files | while IFS= read -r file; do
        cmp -s "$file" "$work/src/$file" 2>/dev/null || { mkdir -p "$work/src/$(dirname "$file")"; cp -PT --remove-destination "$file" "$work/src/$file"; }
    done
}
build() { (cd "$work/src" && cargo build --quiet --locked -p simulation --bin sim); }

missed=
for name in "$@"; do
    fresh
    patch --quiet --directory="$work/src" --strip=1 --input="$PWD/tests/mutations/$name.patch"
    if ! build 2>"$work/$name.log"; then
        cat "$work/$name.log" >&2
        echo "mutants: $name does not build; bring its patch up to date" >&2
        exit 1
    fi
    if "$work/target/debug/sim" --seeds "$seeds" --failures 1 >"$work/$name.log" 2>/dev/null; then
        echo "MISSED  $name"
        missed="$missed $name"
    elif ! grep -q '^seed [0-9]*: ' "$work/$name.log"; then
        echo "mutants: the simulation of $name did not come to an end; see $work/$name.log" >&2
        exit 1
    else
        echo "caught  $name: $(grep -m1 '^seed [0-9]*: ' "$work/$name.log" | cut -c1-150)"
    fi
done
fresh
[ -z "$missed" ] || { echo "mutants: not found in $seeds seeds:$missed" >&2; exit 1; }
