#!/usr/bin/env bash
# Make lists of targets: side_by_side.sh "test" "test-spark" "test-kafka" "test-golden test-faults"
# The first by itself, then all others beside each other. The targets of a list follow each other, and each is made
# whatever became of the one before. What the second list prints is shown as it comes, that of the others at the end,
# then the names of all that failed.
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
        "${MAKE:-make}" --no-print-directory "$target" || echo "$target" >>"$work/failed"
    done
}

set -m # each list is a process group of its own
make_each "$1" &
running=($!)
wait "${running[0]}"
shown=$2
shift 2
running=()
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
cat "$work"/said-*
[ ! -s "$work/failed" ] || { echo "failed: $(xargs <"$work/failed")" >&2; exit 1; }
