#!/bin/sh
# Fuzzes the parsers of tests/parsers, so many seconds each: tests/fuzz.sh SECONDS [TARGET ...]. Without a
# sanitizer, since the code is safe Rust: it looks for panics and broken rules, and takes a stable compiler.
set -eu
cd "$(dirname "$0")/.."
seconds=$1
shift
[ $# -gt 0 ] || set -- $(cd tests/fuzz/fuzz_targets && ls -- *.rs | sed 's/\.rs$//')
command -v cargo-fuzz >/dev/null ||
    cargo install --quiet --locked --debug --root target/tools cargo-fuzz@0.13.2
PATH=$PWD/target/tools/bin:$PATH

for target in "$@"; do
    found=$PWD/target/fuzz/found/$target
    mkdir -p "$found"
    echo "== $target, $seconds s"
    # New inputs go to the first directory; the committed corpus is only read. A message has at most 256 KiB.
    cargo fuzz run --fuzz-dir tests/fuzz --target-dir target/fuzz --sanitizer none "$target" \
        "$found" "tests/fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -timeout=25 -rss_limit_mb=4096 -max_len=65536 -verbosity=0 -print_final_stats=1 2>"$found.log" || {
        tail -40 "$found.log" >&2
        echo "fuzz: $target failed; its input is in tests/fuzz/artifacts/$target" >&2
        exit 1
    }
    grep -E 'number_of_executed_units|new_units_added' "$found.log" | sed 's/^stat:://'
done
