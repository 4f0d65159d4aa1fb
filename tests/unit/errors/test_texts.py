"""Texts and hints that depend on what is known: in one line, and with a next step that works."""

import ast
import os
import pickle
import re
from pathlib import Path
from socket import gethostname
from typing import Final

import pytest

from tailer.errors import (
    DataCorrupt,
    FileVacuumed,
    NotATable,
    SinkFenced,
    SinkRejected,
    TailerError,
    VersionAhead,
    VersionGone,
)
from tailer.sink import instance_name, process_of
from tests.support.cases import cases

ROOT: Final = Path(__file__).resolve().parents[3]
LACKING: Final = re.compile(r"`tailer (pause|resume|resnapshot|skip|progress reset)`")


@pytest.mark.parametrize(
    ("reason", "text"), [("one", "one"), ("one\r\n\n  two\n", "one two"), ("one\u2028two  three", "one two  three")]
)
def test_a_text_is_one_line(reason: str, text: str) -> None:
    assert str(DataCorrupt("t", 1, "f", reason)) == f"t: version 1: f: {text}"
    assert str(NotATable("t", reason)) == f"t: not a Delta table: {text}"


@cases(
    ("gone", "says", "does_not_say"),
    [
        (VersionGone("t", 3, 0, 9), ("it holds others from 0 to 9", "with --from"), ("--from 4",)),
        (VersionGone("t", 3, 5, 9), ("it holds 5 to 9",), ("others",)),
        (VersionGone("t", 3, None, 9), ("it holds no commit up to 9",), ()),
        (
            VersionGone("t", 3, 0, 9, 5, ("latest",)),
            ("read from version 5 on (`tail`: ", "`--from 5`, `--from latest`)"),
            ("snapshot`)",),
        ),
        (
            VersionGone("t", 3, 0, 9, 10, ("latest", "snapshot")),
            ("read from version 10 on", "`--from snapshot`"),
            ("--from 10",),
        ),
        (VersionGone("t", 3, 0, 9, None, ()), ("unknown", "a checkpoint of version 3 or of a later one"), ("--from",)),
    ],
)
def test_a_gap_names_the_starts_that_work(
    gone: VersionGone, says: tuple[str, ...], does_not_say: tuple[str, ...]
) -> None:
    text = f"{gone} {gone.hint}"
    assert all(each in text for each in says), text
    assert not any(each in text for each in does_not_say), text


def test_a_missing_file_is_also_named_as_in_the_log() -> None:
    plain, escaped = FileVacuumed("t", 1, "t/a b"), FileVacuumed("t", 1, "t/a b", "a%20b")
    assert "t/a b, which is missing" in str(plain)
    assert "t/a b (a%20b in the log), which is missing" in str(escaped)
    assert ("percent-encoded" in plain.hint, "percent-encoded" in escaped.hint) == (False, True)


def test_commands_of_a_hint_name_the_pipeline_as_a_shell_takes_it() -> None:
    gone = VersionAhead("t/PIPELINE", 3, 2)
    assert "`tailer progress reset PIPELINE --to 2`, and run `tailer resume PIPELINE`" in gone.hint_for("")
    assert "`tailer progress reset a/b --to 2`, and run `tailer resume a/b`" in gone.hint_for("a/b")
    assert "`tailer resume 'all/of us'`" in gone.hint_for("all/of us")
    elsewhere = SinkRejected("s", "refused", "Let it read lake-tailer-PIPELINE, in /PIPELINE PIPELINE.")
    assert elsewhere.hint_for("a") == elsewhere.hint


@pytest.mark.parametrize("folder", ["tailer", "sinks"])
def test_no_text_leaves_the_pipeline_out_of_a_command(folder: str) -> None:
    lacking = []
    for path in (ROOT / folder).rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
        lacking += [f"{path}:{each.lineno}" for each in texts if LACKING.search(str(each.value))]
    assert not lacking, "\n".join(lacking)


@pytest.mark.parametrize("error", [FileVacuumed("t", 1, "a", "b"), VersionGone("t", 3, 0, 9, 5, ("latest",))])
def test_it_survives_pickle(error: TailerError) -> None:
    same = pickle.loads(pickle.dumps(error))
    assert (str(same), same.hint) == (str(error), error.hint)


def test_an_instance_that_took_over_is_named_as_a_process() -> None:
    named = SinkFenced("s", "it is ahead", process_of(instance_name()))
    assert str(named) == f"sink s: another instance took over (process {os.getpid()} on {gethostname()}): it is ahead"
    assert process_of("db-1.eu-4711-0a1b") == "process 4711 on db-1.eu"
    assert process_of(former := "5c1e0a3b" * 4) == former  # as releases before named them
    assert str(SinkFenced("s", "it is ahead", process_of(""))) == "sink s: another instance took over: it is ahead"
