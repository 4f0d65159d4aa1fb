"""Public Iceberg tables: each is followed from its first snapshot and right at every one, or refused for a reason.

Spark has read the rows of each snapshot (`golden/iceberg.md`), or PyIceberg where Spark refuses. A table whose metadata
files a catalog names is followed up to the state in one of them.
"""

import base64
import json
import math
import struct
import tarfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.config.tables import TableRef
from tailer.errors import ChangesUnavailable, DataCorrupt, TailerError, UnsupportedFeature
from tailer.formats.rows import execute
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan
from tailer.read.pruning import LogStatistics
from tailer.schema.columns import physical_name
from tailer.start import Start
from tailer.table_log import TableLog
from tests.support.tables.golden import golden

pytestmark = pytest.mark.golden

ROOT: Final = Path("/tmp/lake-tailer-iceberg-golden")  # which metadata and delete files name

# Numbers of rows that a reader of our own found, where neither Spark nor PyIceberg reads a table.
COUNTED: Final[Mapping[str, list[int]]] = {
    "equality_delete_cross_partition": [4, 3],
    "equality_delete_extra_column": [3, 2],
    "partition_fixed": [2],
    "partition_time": [2],
    "trino_nested_variant": [0, 2],
    "trino_variant": [0, 55],
    "timestamptz_ns": [],
}


# The same of tables of the first format version, at their last snapshot.
UNNUMBERED: Final = {"iceberg_uppercase_col": 0, "name_mapping": 10_000}


# Tables whose rows get the defaults of new columns at some version, without being written.
DEFAULTED: Final = {
    "add_columns_with_defaults",
    "add_columns_with_defaults_in_struct",
    "iceberg_v3_all_types",
    "iceberg_v3_default_value",
    "test_complex_default",
    "test_default_part",
}


@dataclass(frozen=True)
class Refusal:
    """Tables that must end with an error, and why."""

    error: type[TailerError]
    why: str
    names: tuple[str, ...]


REFUSED: Final = (
    Refusal(
        UnsupportedFeature,
        "data files in ORC or Avro",
        (
            "iceberg_mixed_file_format_test",
            "iceberg_v3_default_value_avro",
            "iceberg_v3_row_lineage_orc",
        ),
    ),
    Refusal(DataCorrupt, "a delete file with null paths, which Spark refuses, too", ("iceberg_v2_null_delete_record",)),
    Refusal(DataCorrupt, "lists of two levels, which Spark cannot read either", ("iceberg_migrated_complex_test",)),
    Refusal(ChangesUnavailable, "the archive lacks a manifest list, which Spark misses, too", ("equality_deletes",)),
    Refusal(DataCorrupt, "neither field ids nor a name mapping", ("inconsistent_partitions",)),
)
REFUSAL_OF: Final = {name: refusal for refusal in REFUSED for name in refusal.names}

Row = tuple[tuple[str, Any], ...]
Rows = Counter[Row]


@pytest.fixture(scope="session", autouse=True)
def tables() -> Path:
    """Unpack the tables to the folder that their metadata names."""
    if not ROOT.is_dir():
        part = ROOT.with_name(f"{ROOT.name}-{uuid.uuid4().hex}")
        with tarfile.open(golden("iceberg.tar.xz")) as archive:
            archive.extractall(part, filter="data")
        try:
            part.rename(ROOT)
        except OSError:  # another process was first
            assert ROOT.is_dir()
    return ROOT


def names() -> list[str]:
    """Return the names of all tables, which the list of the archive has."""
    listed = golden("iceberg.md").read_text().splitlines()
    return sorted(line.split("`")[1] for line in listed if line.startswith("| `"))


def location(name: str, metadata: str) -> Path:
    """Return the location of a table: its folder, or one metadata file where a catalog names these."""
    files = [each.name for each in (ROOT / name / "metadata").glob("*.metadata.json")]
    by_version = any(each.startswith("v") and each[1].isdecimal() for each in files)
    return ROOT / name if by_version else ROOT / name / "metadata" / metadata


def plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value of ours in a form that equal values share."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return tuple((field.name, plain(value[field.name], field.type)) for field in kind)
    if pa.types.is_list(kind):
        return tuple(plain(each, kind.value_type) for each in value)
    if pa.types.is_map(kind):
        return frozenset((plain(key, kind.key_type), plain(item, kind.item_type)) for key, item in value)
    if pa.types.is_floating(kind):
        return "nan" if math.isnan(value) else value
    if pa.types.is_timestamp(kind):
        return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return value


def expected(value: Any, kind: pa.DataType) -> Any:
    """Return a value of the answers as `plain` has it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return tuple((field.name, expected(value.get(field.name), field.type)) for field in kind)
    if pa.types.is_list(kind):
        return tuple(expected(each, kind.value_type) for each in value)
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return frozenset((expected(key, kind.key_type), expected(item, kind.item_type)) for key, item in pairs)
    return next((read(value) for is_of, read in READERS if is_of(kind)), value)


def number(value: str, form: str) -> float | str:
    """Return a number as a file has it."""
    found: float = struct.unpack(form, struct.pack(form, float(value)))[0]
    return "nan" if math.isnan(found) else found


def data(value: str) -> bytes:
    """Return bytes, which are base 64, or a UUID."""
    return uuid.UUID(value).bytes if value.count("-") == 4 else base64.b64decode(value)


READERS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]]] = (
    (pa.types.is_float32, partial(number, form="f")),
    (pa.types.is_float64, partial(number, form="d")),
    (pa.types.is_integer, int),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_date, lambda value: datetime.fromisoformat(value).date()),
    (pa.types.is_time, time.fromisoformat),
    (pa.types.is_timestamp, lambda value: datetime.fromisoformat(value).replace(tzinfo=None)),
    (pa.types.is_binary, data),
    (pa.types.is_fixed_size_binary, data),
)


def answer(snapshot: Mapping[str, Any], schema: pa.Schema) -> Rows:
    """Return the rows of a snapshot in the answers."""
    rows = (json.loads(text, parse_float=str) for text in snapshot["rows"])
    return Rows(
        tuple((physical_name(field), expected(row.get(field.name), field.type)) for field in schema) for row in rows
    )


def rows_of(plan: ChangePlan) -> Iterator[tuple[bool, Row, tuple[Any, Any]]]:
    """Yield the rows of a plan: whether it is deleted, its values by column, and its row ids."""
    tracked = plan.with_row_ids()
    for own, task in zip(plan.tasks, tracked.tasks, strict=True):
        for batch in execute(task):
            for row in batch.rows.to_pylist():
                values = tuple((physical_name(field), plain(row[field.name], field.type)) for field in own.schema)
                ids = row["_row_id"], row["_row_commit_version"]
                yield row["_change_type"] in {"delete", "update_preimage"}, values, ids


def restated(rows: Rows, schema: pa.Schema) -> Rows:
    """Return rows of an earlier version with the columns of a schema: those that are new are null."""
    return Rows({_restated(row, schema, physical_name): count for row, count in rows.items()})


def _restated(row: Row, fields: Iterable[pa.Field], name_of: Callable[[pa.Field], str]) -> Row:
    before, values = dict(row), list[tuple[str, Any]]()
    for field in fields:
        value = before.get(name_of(field))
        if pa.types.is_struct(field.type) and isinstance(value, tuple):
            value = _restated(value, field.type, attrgetter("name"))
        values.append((name_of(field), value))
    return tuple(values)


async def snapshot_rows(log: TableLog, version: int) -> tuple[Rows, Counter[tuple[Row, tuple[Any, Any]]], pa.Schema]:
    """Return all rows of a version, and the same with row ids."""
    rows, with_ids, schema = Rows(), Counter[tuple[Row, tuple[Any, Any]]](), pa.schema([])
    async for plan in log.snapshot_plans(version):
        schema = plan.schema
        check_statistics(plan)
        for is_deleted, row, ids in rows_of(plan):
            assert not is_deleted
            rows[row] += 1
            with_ids[row, ids] += 1
    return rows, with_ids, schema


def check_statistics(plan: ChangePlan) -> None:
    """Check that no row is outside of what the statistics of its file say."""
    for task in plan.tasks:
        stats = LogStatistics.parse(task.stats or "", tuple((physical_name(field),) for field in task.schema))
        for batch in execute(task) if stats is not None else ():
            for field in task.schema:
                known = None if stats is None else stats.range([field], [physical_name(field)])
                values = batch.rows.column(field.name)
                if known is not None:
                    least, greatest = pc.min_max(values).as_py().values()
                    assert known.may_be_null or not values.null_count
                    assert known.low is None or least is None or known.low.as_py() <= least
                    assert known.high is None or greatest is None or greatest <= known.high.as_py()


async def next_plan(log: TableLog) -> ChangePlan | int | None:
    """Return the next plan; the version where rows get the default of a new column; None: there is none."""
    try:
        return await log.next_plan()
    except ChangesUnavailable as error:
        if "its default is the value of all rows of before" in error.reason:
            return error.version
        raise


async def check_snapshot(log: TableLog, version: int, wanted: Mapping[str, Any]) -> None:
    """Check the rows of one version."""
    rows, with_ids, schema = await snapshot_rows(log, version)
    assert rows == answer(wanted, schema), f"snapshot {version}"
    if wanted.get("ids"):
        texts = zip(wanted["rows"], wanted["ids"], strict=True)
        known = Counter((next(iter(answer({"rows": [text]}, schema))), tuple(ids)) for text, ids in texts)
        assert with_ids == known, f"row ids of snapshot {version}"


async def check(name: str) -> None:
    """Check a table at every snapshot of its branch that can be followed."""
    path = ROOT / "expected" / f"{name}.json"
    known = json.loads(path.read_bytes()) if path.exists() else {}
    files = sorted(each.name for each in (ROOT / name / "metadata").glob("*.metadata.json"))
    log = TableRef(str(location(name, known.get("metadata") or files[-1]))).open(policy=Policy(where="true"))
    latest = await log.latest()
    snapshots = known.get("snapshots", [])
    if known.get("format") == 1 or name in {*UNNUMBERED, "iceberg_migrated_complex_test"}:
        if snapshots:
            await check_snapshot(log, latest, snapshots[-1])
        else:
            assert (await snapshot_rows(log, latest))[0].total() == UNNUMBERED[name]
        with pytest.raises(UnsupportedFeature, match="needs format version 1"):
            await log.seek(latest)
        return
    numbered = {each["seq"]: each for each in snapshots}  # of the snapshots without numbers, the last one
    first = min(numbered, default=0)
    rows, counts = Rows(), list[int]()
    if snapshots and (snapshots[0]["parent"] or sum(each["seq"] == first for each in snapshots) > 1):
        assert (await log.resolve(Start.at("earliest"))).version == first + 1
        await check_snapshot(log, first, numbered.pop(first))
        return
    await log.seek(first)
    is_defaulted = False
    while (plan := await next_plan(log)) is not None:
        if isinstance(plan, int):
            rows, _, schema = await snapshot_rows(log, plan)
            assert rows == answer(numbered.pop(plan), schema)
            await log.seek(plan + 1)
            is_defaulted = True
            continue
        changed = list(rows_of(plan))
        gone = Rows(row for is_deleted, row, _ in changed if is_deleted)
        assert gone <= rows, f"version {plan.version} deletes rows that are not there"
        rows = restated(rows - gone, plan.schema) + Rows(row for is_deleted, row, _ in changed if not is_deleted)
        counts.append(rows.total())
        if numbered:
            assert rows == answer(numbered[plan.version], plan.schema), f"version {plan.version}"
            await check_snapshot(log, plan.version, numbered[plan.version])
        else:
            assert (await snapshot_rows(log, plan.version))[0] == rows
    assert is_defaulted is (name in DEFAULTED)
    if snapshots:
        assert len(counts) == len(numbered)
    else:
        assert counts == COUNTED[name]


def fault(name: str) -> str | None:
    """Return what is wrong with our reading of a table; None: nothing."""
    refusal = REFUSAL_OF.get(name)
    try:
        anyio.run(check, name)
    except AssertionError as error:
        return f"{name}: {error}"
    except Exception as error:  # noqa: BLE001 - the other tables are judged, too
        return None if refusal is not None and type(error) is refusal.error else f"{name}: {error!r}: {error}"
    return None if refusal is None else f"{name} is not refused"


def test_every_table_is_right_at_every_snapshot_or_refused() -> None:
    wrong = list(filter(None, map(fault, names())))
    if wrong:
        pytest.fail(f"{len(wrong)} of {len(names())} tables\n" + "\n\n".join(wrong), pytrace=False)


def test_every_name_is_one_of_a_table() -> None:
    assert len(names()) == 68
    assert set(REFUSAL_OF) | set(COUNTED) <= set(names())
