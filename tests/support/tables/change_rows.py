"""Change rows for the tests of encoders: made by hand, at random, and as from a pipeline with a key."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch
from tailer.plan import SNAPSHOT_TASKS
from tailer_sinks.testing import change_batch

INSERT, DELETE, PRE, POST = "insert", "delete", "update_preimage", "update_postimage"


def changes(
    kinds: Sequence[str], columns: dict[str, pa.Array], row_index: Sequence[int] | None = None, task: int = 3
) -> ChangeBatch:
    """Make rows of version 5 with these change types."""
    batch = change_batch(5, columns, task)
    change_types = pa.array(kinds, pa.string())
    rows = batch.rows.set_column(batch.rows.schema.get_field_index(CHANGE_TYPE), METADATA_FIELDS[0], change_types)
    index = batch.row_index if row_index is None else pa.array(row_index, pa.int64())
    return ChangeBatch(batch.table_id, batch.version, batch.task, rows, index)


def people(ids: Sequence[int | None], names: list[str]) -> dict[str, pa.Array]:
    return {"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())}


@dataclass(frozen=True)
class Row:
    """A change row as text."""

    kind: str
    index: int
    key: str | None
    image: str


def rank(one: Row, other: Row) -> int:
    """Return how certainly two consecutive rows are one update; -1: both have the same kind."""
    if {one.kind, other.kind} - {PRE, POST} or other.index - one.index > 1:
        return 0
    if one.kind == other.kind:
        return -1
    if one.index == other.index:
        return 4
    if one.key is not None and one.key == other.key:
        return 3
    return 2 if one.kind == PRE else 1


def updates(rows: list[Row]) -> Iterator[int]:
    """Return the numbers of the rows that form an update with the previous row."""
    ranks = [0, *(rank(one, other) for one, other in pairwise(rows)), 0]
    number = 1
    while number < len(rows):
        around = ranks[number - 1], ranks[number + 1]
        blocked = ranks[number] in (1, 2) and -1 in around
        if ranks[number] > 0 and ranks[number] >= max(around) and not blocked:
            yield number
            number += 1
        number += 1


TEXTS = st.one_of(st.text(max_size=5), st.text('"\\\n\x00é😀', max_size=4))
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "n": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "text é": (pa.string(), TEXTS),
    "d": (pa.decimal128(9, 2), st.integers(-(10**8), 10**8).map(lambda unit: Decimal(unit).scaleb(-2))),
    "x": (pa.float64(), st.floats()),
    "ok": (pa.bool_(), st.booleans()),
    "raw": (pa.binary(), st.binary(max_size=4)),
    "at": (pa.timestamp("us", "UTC"), st.integers(-(2**55), 2**55)),
    "local": (pa.timestamp("us"), st.integers(-(2**55), 2**55)),
    "day": (pa.date32(), st.integers(-(10**6), 4 * 10**6)),
    "list": (pa.list_(pa.int16()), st.lists(st.one_of(st.none(), st.integers(-9, 9)), max_size=3)),
    "s": (pa.struct([("a", pa.string()), ("b", pa.int8())]), st.fixed_dictionaries({"a": TEXTS, "b": st.none()})),
    "m": (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(TEXTS, st.integers(0, 9)), max_size=2)),
    "e": (pa.map_(pa.int32(), pa.string()), st.lists(st.tuples(st.integers(0, 9), TEXTS), max_size=2)),
}
KINDS = st.sampled_from([INSERT, DELETE, PRE, PRE, PRE, POST, POST, POST])
BLOCKS = st.sampled_from([[INSERT], [DELETE], [PRE, POST], [POST, PRE], [PRE, PRE, POST, POST]])
MIXES = st.one_of(
    st.lists(st.sampled_from([INSERT])),
    st.lists(st.sampled_from([INSERT, DELETE])),
    st.lists(KINDS, max_size=14),
    st.lists(BLOCKS, max_size=6).map(lambda blocks: [kind for block in blocks for kind in block]),
)


@st.composite
def histories(draw: st.DrawFn) -> ChangeBatch:
    """The change rows of one task, possibly of a snapshot."""
    kinds = draw(MIXES)
    count = len(kinds)
    ids = draw(st.lists(st.sampled_from([1, 1, 2, None]), min_size=count, max_size=count))
    columns = {"id": pa.array(ids, pa.int64()), "id2": pa.array([str(number)[:1] for number in ids])}
    for name in draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, max_size=4)):
        kind, values = COLUMNS[name]
        array = pa.array(draw(st.lists(st.one_of(values, values, st.none()), min_size=count, max_size=count)), kind)
        columns[name] = array.dictionary_encode() if kind == pa.string() and draw(st.booleans()) else array
    steps = draw(st.lists(st.sampled_from([0, 1, 1, 1, 1, 2]), min_size=count, max_size=count))
    task = draw(st.sampled_from([3, 3, SNAPSHOT_TASKS + 3]))
    return changes(kinds, columns, [sum(steps[: number + 1]) for number in range(count)], task)


@dataclass(frozen=True)
class KeyedHistory:
    """The batches of a pipeline that pairs images by `id`, task by task, and the final rows."""

    batches: list[ChangeBatch]
    table: dict[int, str]


@st.composite
def keyed_histories(draw: st.DrawFn) -> KeyedHistory:
    """Any two states of a table with the batches between them, including exchanged and reassigned keys."""
    tables = st.dictionaries(st.integers(0, 5), st.sampled_from("abc"), max_size=6)
    before: dict[int, str] = {}
    batches = []
    for task in range(draw(st.integers(1, 4))):
        after = draw(tables)
        rows: list[tuple[str, int, str, int]] = []
        for key in draw(st.permutations(sorted(before.keys() | after.keys()))):
            index = rows[-1][-1] if rows else 0
            index += draw(st.integers(1, 2))
            for kind, name, step in draw(st.sampled_from(_changes_of(before.get(key), after.get(key)))):
                rows.append((kind, key, name, index + step))
        columns = people([key for _, key, _, _ in rows], [name for _, _, name, _ in rows])
        batches.append(changes([kind for kind, *_ in rows], columns, [index for *_, index in rows], task))
        before = after
    return KeyedHistory(batches, before)


def _changes_of(before: str | None, after: str | None) -> list[list[tuple[str, str, int]]]:
    """List the possible changes of a row: change type, name, and the distance of each from the first row."""
    if before is None:
        assert after is not None
        return [[(INSERT, after, 0)], [(POST, after, 0)]]
    if after is None:
        return [[(DELETE, before, 0)], [(PRE, before, 0)]]
    images = [[(PRE, before, 0), (POST, after, step)] for step in (0, 1)]
    return [*images, [(POST, after, 0), (PRE, before, 1)], *([[]] if before == after else [])]
