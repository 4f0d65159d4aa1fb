#!/usr/bin/env bash
# Make three lists of targets: side_by_side.sh "test" "test-golden test-spark" "test-kafka test-faults"
# The first by itself, then the second beside the third. The targets of a list follow each other, and each is made
# whatever became of the one before. What those of the third list print is shown at the end, then the names of all that
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
        "${MAKE:-make}" --no-print-directory "$target" || echo "$target" >>"$work/failed"
    done
}

set -m # each list is a process group of its own
make_each "$1" &
running=($!)
wait "${running[0]}"
make_each "$3" >"$work/beside" 2>&1 </dev/null &
running=($!)
make_each "$2" &
running+=($!)
wait "${running[1]}"
echo "waiting for: $3"
wait "${running[0]}"
running=()
cat "$work/beside"
[ ! -s "$work/failed" ] || { echo "failed: $(xargs <"$work/failed")" >&2; exit 1; }
