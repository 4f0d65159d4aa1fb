"""Commits of a Delta log. The reference is Python's own JSON: the same files, in the same order."""

import json
from functools import partial
from typing import Any

from tailer.formats.delta.changes import plan_changes
from tailer.formats.delta.log.actions import parse_commit
from tailer.formats.delta.snapshot import Snapshot
from tests.fuzz.target import Target, outcome
from tests.support.tables.log_files import (
    add,
    cdc,
    commit_info,
    inline_vector,
    metadata,
    protocol,
    remove,
    schema_string,
)


def _lines(*actions: object) -> bytes:
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


_HEAD = (protocol(3, ["deletionVectors", "columnMapping"]), metadata(schema_string(a="long", p="string"), ["p"]))
_FILE: dict[str, Any] = {
    "partitionValues": {"p": "1"},
    "stats": '{"numRecords":1}',
    "tags": {"x": None},
    "baseRowId": 7,
}


def _seeds() -> list[bytes]:
    return [
        _lines(commit_info(operation="WRITE", operationMetrics={"numFiles": "1"}, inCommitTimestamp=1), *_HEAD),
        _lines(*_HEAD, add("p=1/a%20b", inline_vector([1, 5]), **_FILE), remove("c", **_FILE)),
        _lines(*_HEAD, remove("a", inline_vector([2]), **_FILE), add("a", inline_vector([2, 3]), **_FILE)),
        _lines(*_HEAD, cdc("_change_data/c", partitionValues={"p": None}), commit_info(operation="MERGE")),
    ]


def _run(data: bytes) -> None:
    commit = outcome(lambda: parse_commit(data, "t", "c", 3, 1000))
    if commit is None:
        return
    actions = outcome(lambda: [json.loads(line) for line in data.split(b"\n") if line.strip()], ValueError)
    if actions is None:  # an action that spans lines
        return
    for kind, files in (("add", commit.adds), ("remove", commit.removes), ("cdc", commit.cdcs)):
        assert [file.path for file in files] == [action[kind]["path"] for action in actions if action.get(kind)]
    begin = partial(Snapshot.begin, "t", 3, commit.protocol, commit.metadata, [1000], None)
    state = outcome(begin)
    if state is not None:
        plan = outcome(lambda: plan_changes(commit, None, state, "/t"))
        assert plan is None or type(plan).from_json(plan.to_json()) == plan


TARGET = Target(
    _run, _seeds, ("tailer.formats.delta.log.actions", "tailer.formats.delta.changes", "tailer.formats.delta.snapshot")
)
