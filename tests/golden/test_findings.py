"""Tables that were once delivered wrong, or refused without a reason: each is an example of a kind of table.

An archive holds a table, and for most of them its rows at each version as Spark reads them, pylance those of Lance; for
some, rows that fulfil a condition at each version, as Spark answers it (ANSI, UTC).
"""

import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import ConfigError, LogCorrupt
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from tests.support.oracle.rows import Rows, from_spark_json, rows_of
from tests.support.oracle.whole_table import Delivered, check_folds, check_snapshot, deliver, schemas_of
from tests.support.tables.golden import archives_of_findings

pytestmark = pytest.mark.golden


@dataclass(frozen=True)
class Answer:
    """The rows of a table at each version, and before the first of them.

    `is_error_right`: whether an error with a name and a hint may come in place of the next version.
    """

    rows: Mapping[int, Rows]
    before: Rows = field(default_factory=Rows)
    is_error_right: bool = False


def rows(*found: Mapping[str, Any]) -> Rows:
    """Return rows as the oracle compares them."""
    return Rows(tuple(sorted((name, value) for name, value in row.items() if value is not None)) for row in found)


def ids(*values: int) -> Rows:
    """Return rows of one column."""
    return rows(*({"id": value} for value in values))


# Those without an answer in their archive.
ANSWERS: Final = {
    "checkpoint_of_a_replace": Answer({2: rows({"name": "a"}, {"name": "b"})}, before=rows({"name": "a"})),
    "dlt_first_metadata_without_schema": Answer({0: ids(), 1: ids(), 2: ids(1, 2, 3)}),
    "dlt_full_refresh": Answer({0: ids(), 1: ids(1, 2, 3), 2: ids(), 3: ids(), 4: ids(4)}),
    "remove_without_partition_values": Answer(
        {
            0: rows(),
            1: rows({"id": 1, "p": "a"}, {"id": 2, "p": "a"}, {"id": 3, "p": "b"}),
            2: rows({"id": 3, "p": "b"}),
        }
    ),
}
FOLDED: Final = (
    "char_padding",
    "checkpoint_of_a_replace",
    "collation",
    "ct_string_bin",
    "dlt_first_metadata_without_schema",
    "dlt_full_refresh",
    "empty_string_partition",
    "lance_dictionary_with_null",
    "lance_int8_dictionaries",
    "m1_offset",
    "remove_and_add_of_one_path",
    "remove_with_empty_partition_values",
    "remove_without_partition_values",
)
# Judged with computed updates, too.
WITH_CONDITIONS: Final = ("collation", "m1_offset", "ms_stats", "readd")
KEYED: Final = ("char_padding", "lance_dictionary_with_null", "lance_int8_dictionaries")


def unpack(name: str, folder: Path) -> Path:
    """Unpack the archive of a table, and return the table."""
    with tarfile.open(archives_of_findings()[name]) as tar:
        tar.extractall(folder, filter="data")
    return folder / name


def state_of(path: Path, version: int, written: Sequence[Any]) -> Rows:
    """Return the rows of an answer, each as an object, or as the text that Spark writes."""
    if not written or isinstance(written[0], dict):
        return rows(*written)
    schema = max((known, schema) for known, schema in schemas_of(path).items() if known <= version)[1]
    return rows_of(from_spark_json(list(map(json.loads, written)), schema))


def answer_of(path: Path) -> Answer:
    """Return the rows of an unpacked table at each version."""
    if path.name in ANSWERS:
        return ANSWERS[path.name]
    written = json.loads(path.with_name(f"{path.name}.expected.json").read_bytes())
    states = {int(version): state_of(path, int(version), state) for version, state in written["fold"].items()}
    return Answer(states, is_error_right=written.get("error_ok", False))


@pytest.mark.parametrize("name", FOLDED)
def test_fold_at_every_version(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    answer = answer_of(path)
    delivered = deliver(path)
    followed = answer.rows
    if answer.is_error_right and delivered.error is not None:
        followed = {version: state for version, state in followed.items() if version in delivered.versions}
        assert delivered.error.hint
    else:
        assert delivered.error is None, repr(delivered.error)
    check_folds(path, delivered, followed.items(), answer.before)
    latest = max(answer.rows)
    check_snapshot(path, answer.rows[latest])
    if delivered.error is None:
        begun = deliver(path, start=latest)
        assert begun.error is None, repr(begun.error)
        check_folds(path, begun, [(latest, answer.rows[latest])], answer.rows.get(latest - 1, answer.before))


@pytest.mark.parametrize("name", KEYED)
def test_fold_with_computed_updates(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    answer = answer_of(path)
    delivered = deliver(path, compute_updates=True, key=["id"])
    assert delivered.error is None, repr(delivered.error)
    check_folds(path, delivered, answer.rows.items(), answer.before)


def test_an_updated_row_with_padded_text_is_one_update(tmp_path: Path) -> None:
    path = unpack("char_padding", tmp_path)
    table = pa.concat_tables(deliver(path, compute_updates=True, key=["id"]).versions[2])
    assert table.select([CHANGE_TYPE, "id", "v"]).to_pylist() == [
        {CHANGE_TYPE: "update_preimage", "id": "ab   ", "v": 1},
        {CHANGE_TYPE: "update_postimage", "id": "ab   ", "v": 9},
    ]


def test_a_remove_without_the_vector_of_its_file_is_read_as_in_sparks_feed(tmp_path: Path) -> None:
    """By the protocol it removes nothing, so the file is there twice, and a fold of these changes is not the table."""
    path = unpack("remove_without_its_vector", tmp_path)
    answer = answer_of(path)
    delivered = deliver(path)
    assert delivered.error is None, repr(delivered.error)
    (changes,) = delivered.versions.pop(3)
    assert rows_of(changes, [COMMIT_VERSION, COMMIT_TIMESTAMP]) == rows(
        {CHANGE_TYPE: "delete", "id": 4}, {CHANGE_TYPE: "delete", "id": 8}
    )
    check_folds(path, delivered, [(version, answer.rows[version]) for version in range(3)], answer.before)
    check_snapshot(path, answer.rows[3])


def test_text_after_json_is_refused_by_name(tmp_path: Path) -> None:
    """Spark ignores it. Nothing else may be at the end of a line, so a stop is right, too."""
    path = unpack("text_after_json", tmp_path)
    delivered = deliver(path)
    assert delivered.versions == {}
    assert isinstance(delivered.error, LogCorrupt)
    assert delivered.error.fields["version"] == 1
    assert delivered.error.hint


@pytest.mark.parametrize("name", WITH_CONDITIONS)
def test_conditions_at_every_version(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    conditions = json.loads(path.with_name(f"{name}.expected.json").read_bytes())["where"]
    for where, answers in conditions:
        states = {int(version): state_of(path, int(version), state) for version, state in answers.items()}
        if name == "collation":
            check_refused(deliver(path, where=where), 0)
            check_refused(deliver(path, where=where, start="snapshot"), 1)
            continue
        delivered = deliver(path, where=where)
        if name == "readd":
            check_refused(delivered, 1)
            states = {0: states[0]}
        else:
            assert delivered.error is None, repr(delivered.error)
        check_folds(path, delivered, states.items(), Rows())


def test_a_name_that_belongs_to_another_column_in_a_projection(tmp_path: Path) -> None:
    """An expression stops; a column that is named alone is dropped, and another one is added."""
    path = unpack("readd", tmp_path)
    check_refused(deliver(path, select="x, upper(y) AS u"), 1)
    delivered = deliver(path, select="x, y")
    assert delivered.error is None, repr(delivered.error)
    assert sorted(delivered.versions) == [0, 2]


def check_refused(delivered: Delivered, version: int) -> None:
    """Check that a condition was refused by name, before any row of a version."""
    assert version not in delivered.versions
    assert isinstance(delivered.error, ConfigError)
    assert delivered.error.hint
    assert f"version {version}" in delivered.error.reason


def test_every_finding_is_tested() -> None:
    others = "remove_without_its_vector", "text_after_json"
    assert archives_of_findings().keys() == {*FOLDED, *WITH_CONDITIONS, *others}
