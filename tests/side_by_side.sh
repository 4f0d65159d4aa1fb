#!/usr/bin/env bash
# Make two lists of targets side by side: side_by_side.sh "test-golden test-spark" "test-kafka test-faults"
# The targets of a list follow each other, and each is made whatever became of the one before. What those of the second
# list print is shown at the end, then the names of all that failed.
set -uo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
beside=

clean_up() {
    # An interrupt, as from the keyboard: tests stop their servers. The list that runs here has had its own.
    [ -z "$beside" ] || { kill -INT -- "-$beside" && wait "$beside"; } 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

make_each() {
    for target in $1; do
        "${MAKE:-make}" --no-print-directory "$target" || echo "$target" >>"$work/failed"
    done
}

set -m # a process group of its own
make_each "$2" >"$work/beside" 2>&1 </dev/null &
beside=$!
set +m
make_each "$1"
echo "waiting for: $2"
wait "$beside"
beside=
cat "$work/beside"
[ ! -s "$work/failed" ] || { echo "failed: $(xargs <"$work/failed")" >&2; exit 1; }
