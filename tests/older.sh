#!/bin/sh
# Builds csi-cloud and csi-edge of a commit below target/skew, and prints their directory.
set -eu
cd "$(dirname "$0")/.."
commit=$(git rev-parse --short=7 --verify "${1:?COMMIT is missing}^{commit}")
source=target/skew/$commit
[ -e "$source/Cargo.toml" ] || {
  git worktree prune
  git worktree add --quiet --detach "$source" "$commit" >&2
}
(cd "$source" && CARGO_TARGET_DIR=target cargo build --locked -p cloud -p edge >&2)
echo "$PWD/$source/target/debug"
