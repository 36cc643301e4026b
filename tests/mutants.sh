#!/bin/sh
# Shows that the simulation can fail. Each patch in tests/mutations breaks a promise in a copy of our code, and the
# simulation must find out. A patch that says "Caught by: cargo test ARGUMENTS" breaks one that unit tests own. Names given as arguments are the patches to try; without any, all.
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
sim=$work/target/debug/sim

# A seed that fails without any patch shows nothing about a patch. What has passed with these seeds
# is not run again.
baseline() {
    fresh
    if ! build 2>"$work/baseline.log"; then
        cat "$work/baseline.log" >&2
        echo "mutants: our own code does not build" >&2
        exit 1
    fi
    passed="$seeds seeds by $(sha256sum <"$sim")"
    [ "$(cat "$work/baseline.passed" 2>/dev/null)" != "$passed" ] || return 0
    if ! "$sim" --seeds "$seeds" --failures 1 >"$work/baseline.log" 2>&1; then
        grep -m1 '^seed [0-9]*: ' "$work/baseline.log" >&2 || true
        echo "mutants: the simulation fails without a patch; see $work/baseline.log" >&2
        exit 1
    fi
    echo "$passed" >"$work/baseline.passed"
}

# Prints the unit tests that must catch a patch; nothing if the simulation must.
units() { sed -n 's/^Caught by: cargo test //p' "tests/mutations/$1.patch"; }

# Runs the unit tests of a patch, whose arguments are words.
try_units() {
    arguments=$(units "$1")
    # shellcheck disable=SC2086
    if (cd "$work/src" && cargo test --quiet --locked $arguments) >"$work/$1.log" 2>&1; then
        echo "MISSED  $1"
        missed="$missed $1"
    elif ! grep -q '^test result: FAILED' "$work/$1.log"; then
        cat "$work/$1.log" >&2
        echo "mutants: $1 does not build; bring its patch up to date" >&2
        exit 1
    else
        echo "caught  $1: $(grep -m1 -- '^---- ' "$work/$1.log" | cut -c1-150)"
    fi
}

baseline
missed=
for name in "$@"; do
    fresh
    patch --quiet --directory="$work/src" --strip=1 --input="$PWD/tests/mutations/$name.patch"
    if [ -n "$(units "$name")" ]; then
        try_units "$name"
        continue
    fi
    if ! build 2>"$work/$name.log"; then
        cat "$work/$name.log" >&2
        echo "mutants: $name does not build; bring its patch up to date" >&2
        exit 1
    fi
    if "$sim" --seeds "$seeds" --failures 1 >"$work/$name.log" 2>/dev/null; then
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
[ -z "$missed" ] || { echo "mutants: not found in $seeds seeds, or by their tests:$missed" >&2; exit 1; }
