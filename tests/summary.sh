#!/bin/sh
# Runs a command, shows what it prints, and ends with one summary: the tests that passed, the tiers that were skipped,
# and what installs what they lack.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{ "$@" 2>&1; echo $? >"$work/outcome"; } | tee "$work/output"
outcome=$(cat "$work/outcome")

echo
# libtest's line: `test result: ok. 12 passed; 0 failed; …`
awk '/^test result: / { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) passed += $(i - 1); if ($i ~ /^failed/) failed += $(i - 1) } }
    END { printf "tests: %d passed, %d failed\n", passed, failed }' "$work/output"
# A test's progress may stand before it in its line.
sed -n 's/^.*tier skipped: //p' "$work/output" | sort -u >"$work/skipped"
if [ ! -s "$work/skipped" ]; then
    echo "tiers skipped: none"
    exit "$outcome"
fi
echo "tiers skipped:"
sed 's/^/  /' "$work/skipped"
missing=
for pair in losetup:mount ip:iproute2 mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs go:golang jq:jq dpkg-deb:dpkg \
    etcd:etcd-server systemd-analyze:systemd; do
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
done
[ -z "$missing" ] || echo "install what they need: apt-get install --no-install-recommends$missing"
[ "$(id -u)" = 0 ] || echo "run as root for what needs mounts and network namespaces"
exit "$outcome"
