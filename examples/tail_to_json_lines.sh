#!/usr/bin/env bash
# Export the changes of a table to a file of JSON Lines, one change per line, and count them by kind.
#
#     pip install lake-tailer
#     ./tail_to_json_lines.sh TABLE FILE [FIRST_VERSION]
#
# `tail` remembers nothing: give the first version to export, by default the earliest one that the log still holds. To
# follow a table without a break and exactly once, use a sink, as in delta_to_delta_with_metrics.toml.
set -euo pipefail

table=$1
file=$2
first=${3:-earliest}

# The file appears under its name when it is complete.
tailer tail "$table" --from "$first" --to latest --format jsonl >"$file.part"
mv "$file.part" "$file"

sed 's/.*"_change_type":"\([a-z_]*\)".*/\1/' "$file" | sort | uniq -c
