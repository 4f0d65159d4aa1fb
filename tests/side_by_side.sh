#!/usr/bin/env bash
# Make lists of targets beside each other: side_by_side.sh "check test" test-spark "test-faults test-long"
# The targets of a list follow each other, and each is made whatever became of the one before. What the first list
# prints is shown as it comes, that of the others at the end, then how long each target took and the names of all that
# failed.
set -uo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
running=()

clean_up() {
    # As from the keyboard: tests stop their servers when they are interrupted.
    for list in "${running[@]}"; do kill -INT -- "-$list" 2>/dev/null; done
    wait
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

make_each() {
    for target in $1; do
        began=$SECONDS
        "${MAKE:-make}" --no-print-directory "$target" || echo "$target" >>"$work/failed"
        echo "$target took $((SECONDS - began)) s" >>"$work/took"
    done
}

set -m # each list is a process group of its own
shown=$1
shift
for list in "$@"; do
    make_each "$list" >"$work/said-$((${#running[@]} + 1))" 2>&1 </dev/null &
    running+=($!)
done
make_each "$shown" &
running+=($!)
wait "${running[-1]}"
for list in "$@"; do
    echo "waiting for: $list"
    wait "${running[0]}"
    running=("${running[@]:1}")
done
cat "$work"/said-* "$work/took"
[ ! -s "$work/failed" ] || { echo "failed: $(xargs <"$work/failed")" >&2; exit 1; }
