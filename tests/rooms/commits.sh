#!/bin/sh
# Refuses commits with a `wip` subject, a subject over 72 columns, or more than one parent; newer ones
# without a body, too.
set -eu
# Commits after this one are checked.
BASE=b326f63aa4211cfca412c9f02c6919a55a314e28
# Commits after this one need a body.
BODIES=a17487a263ae593e78f6d2104c0b4c57499b7a0c
COLUMNS_AT_MOST=72

skip() {
    echo "commits: $1; no commit is checked"
    exit 0
}

# Bytes that continue a character of UTF-8 take no column.
columns() { printf '%s' "$1" | LC_ALL=C tr -d '\200-\277' | wc -c; }

faults() {
    git log --format='%h %P%x09%s' "$BASE..HEAD" | while IFS='	' read -r ids subject; do
        # shellcheck disable=SC2086 # the commit and its parents, which are words
        set -- $ids
        [ $# -le 2 ] || echo "$1: a merge: $subject"
        [ "$(columns "$subject")" -le "$COLUMNS_AT_MOST" ] ||
            echo "$1: over $COLUMNS_AT_MOST columns: $subject"
        if printf '%s\n' "$subject" | grep -qiw wip; then
            echo "$1: work in progress: $subject"
        fi
    done
    git log --format='%h%x09%s' "$BODIES..HEAD" | while IFS='	' read -r id subject; do
        [ -n "$(git log -1 --format=%b "$id")" ] || echo "$id: no body: $subject"
    done
}

git rev-parse --git-dir >/dev/null 2>&1 || skip 'this is no clone'
for commit in "$BASE" "$BODIES"; do
    git rev-parse --quiet --verify "$commit^{commit}" >/dev/null ||
        skip "$commit is not here, perhaps because the clone is shallow"
    git merge-base --is-ancestor "$commit" HEAD ||
        skip "$commit is not before HEAD, perhaps because the clone is shallow"
done
found=$(faults)
[ -z "$found" ] || {
    printf 'commits: mend these before they are merged:\n%s\n' "$found" >&2
    exit 1
}
