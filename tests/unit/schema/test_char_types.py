"""CHAR(n): found in the type that a column notes, in every position, and padded there and nowhere else."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.errors import LogCorrupt
from tailer.formats.delta.schema import arrow_schema
from tailer.plan import ChangeTask, TaskKind, output_schema
from tailer.read.execute import execute
from tailer.schema.changes import describe_changes
from tailer.schema.columns import physical_name, restated
from tailer.schema.identity import identified, united
from tailer.schema.text_types import char_lengths, with_chars
from tests.support.cases import cases
from tests.support.seeds import repeats
from tests.support.tables.log_files import marked, parquet, task

NOTE: Final = "__CHAR_VARCHAR_TYPE_STRING"
MAPPED: Final = "delta.columnMapping.physicalName"
TEXTS: Final = st.none() | st.text("a é😀\u0301", max_size=5)


@dataclass(frozen=True)
class Kind:
    """A type in SQL and in Delta's JSON, its values as stored, and what Spark reads for one."""

    sql: str
    delta: Any
    values: st.SearchStrategy[Any]
    read: Callable[[Any], Any]


def char(length: int) -> Kind:
    return Kind(f"char({length})", "string", TEXTS, lambda value: None if value is None else value.ljust(length))


def same(sql: str, delta: str, values: st.SearchStrategy[Any]) -> Kind:
    return Kind(sql, delta, values, lambda value: value)


PLAIN: Final = [
    same("varchar(7)", "string", TEXTS),
    same("string", "string", TEXTS),
    same("decimal(9,0)", "decimal(9,0)", st.none()),
    same("int", "integer", st.none() | st.integers(0, 9)),
]
LEAVES: Final = st.integers(1, 6).map(char) | st.sampled_from(PLAIN)


def array(of: Kind) -> Kind:
    delta = {"type": "array", "elementType": of.delta, "containsNull": True}
    values = st.none() | st.lists(of.values, max_size=3)
    return Kind(f"array<{of.sql}>", delta, values, lambda value: None if value is None else list(map(of.read, value)))


def a_map(key: Kind, of: Kind) -> Kind:
    delta = {"type": "map", "keyType": key.delta, "valueType": of.delta, "valueContainsNull": True}
    keys = key.values.filter(lambda value: value is not None)
    values = st.none() | st.lists(st.tuples(keys, of.values), max_size=2, unique_by=lambda pair: key.read(pair[0]))

    def read(value: Any) -> Any:
        return None if value is None else [(key.read(name), of.read(each)) for name, each in value]

    return Kind(f"map<{key.sql},{of.sql}>", delta, values, read)


def struct(fields: list[Kind]) -> Kind:
    names = [f"f{number}" for number in range(len(fields))]
    members = [
        {"name": name, "type": each.delta, "nullable": True, "metadata": {MAPPED: f"physical {name}"}}
        for name, each in zip(names, fields, strict=True)
    ]
    inner = ",".join(f"{name}:{each.sql}" for name, each in zip(names, fields, strict=True))
    values = st.none() | st.fixed_dictionaries({name: each.values for name, each in zip(names, fields, strict=True)})

    def read(value: Any) -> Any:
        return value and {name: each.read(value[name]) for name, each in zip(names, fields, strict=True)}

    return Kind(f"struct<{inner}>", {"type": "struct", "fields": members}, values, read)


CHARS: Final = st.integers(1, 6).map(char)
KINDS: Final = st.one_of(
    CHARS,
    LEAVES.map(array),
    st.builds(a_map, CHARS, LEAVES.map(array)),
    st.lists(LEAVES, min_size=1, max_size=3).map(struct).map(array),
    st.builds(lambda leaf, other: struct([leaf, struct([other]), a_map(char(3), leaf)]), LEAVES, LEAVES),
)


def columns(mapped: bool = False, **kinds: Kind) -> pa.Schema:
    """Read the schema of a Delta table whose columns note their types."""
    fields = [
        {"name": name, "type": kind.delta, "nullable": True, "metadata": {NOTE: kind.sql, MAPPED: f"physical {name}"}}
        for name, kind in kinds.items()
    ]
    mode = "name" if mapped else "none"
    text = json.dumps({"type": "struct", "fields": fields})
    return arrow_schema(text if mapped else text.replace("physical ", ""), mode, "t", 3)


def stored(kind: pa.DataType, mapped: bool) -> pa.DataType:
    """Return a type with the names that a file has."""
    if pa.types.is_struct(kind):
        names = [f"physical {field.name}" if mapped else field.name for field in kind]
        return pa.struct([(name, stored(field.type, mapped)) for name, field in zip(names, kind, strict=True)])
    if pa.types.is_map(kind):
        return pa.map_(stored(kind.key_type, mapped), stored(kind.item_type, mapped))
    return pa.list_(stored(kind.value_type, mapped)) if pa.types.is_list(kind) else kind


@settings(max_examples=repeats(20))
@given(st.data(), KINDS, KINDS, st.booleans(), st.sampled_from(list(TaskKind)))
def test_chars_in_every_position(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, one: Kind, other: Kind, mapped: bool, kind: TaskKind
) -> None:
    """In data and change files, mapped or not, with vectors, in a partition value; tasks come from JSON."""
    length, text = data.draw(st.integers(1, 4)), data.draw(TEXTS)
    schema = columns(mapped, a=one, b=other, p=char(length), q=PLAIN[0])
    rows = data.draw(st.lists(st.tuples(one.values, other.values), min_size=1, max_size=6))
    table = file_of(schema, rows, mapped)
    is_cdc = kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
    if is_cdc:
        change = "delete" if kind is TaskKind.CDC_DELETES else "update_postimage"
        table = table.append_column("_change_type", pa.array([change] * len(rows)))
    gone = [] if is_cdc else data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))
    path = parquet(tmp_path_factory.mktemp("t") / "f", table)
    partition = [(physical_name(schema.field(name)), text) for name in "pq"]
    job = task(path, schema, kind, partition, exclude=marked(gone) if gone else None)
    found = [batch.rows for batch in execute(ChangeTask.from_dict(json.loads(json.dumps(job.to_dict()))))]
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(output_schema(schema), check_metadata=True)
    expected = [
        (one.read(a), other.read(b), char(length).read(text), text) for at, (a, b) in enumerate(rows) if at not in gone
    ]
    assert [tuple(row[name] for name in "abpq") for batch in found for row in batch.to_pylist()] == expected


def file_of(schema: pa.Schema, rows: list[tuple[Any, Any]], mapped: bool) -> pa.Table:
    """Make a file of the first two columns, with the names that it has for them."""
    arrays = []
    for values, kind in zip(zip(*rows, strict=True), output_schema(schema).types[:2], strict=True):
        arrays.append(pa.array(values, kind).view(stored(kind, mapped)))
    return pa.table(arrays, [physical_name(schema.field(name)) for name in "ab"])


@cases(
    ("kind", "note"),
    [
        ("integer", "char(3)"),
        ("string", "char(0)"),
        ("string", "char(3)>"),
        ("string", "struct<a:char(3)>"),
        ("string", "row<char(3)>"),
        (array(PLAIN[1]).delta, "char(3)"),
        (array(PLAIN[1]).delta, "map<char(3),string>"),
        (array(PLAIN[1]).delta, "array<char(3)"),
        (struct(PLAIN[:1]).delta, "struct<f0:char(3),f1:string>"),
    ],
)
def test_a_note_that_does_not_fit(kind: Any, note: str) -> None:
    """Spark drops a field of a struct and leaves the note as it was, and cannot read the table any more."""
    with pytest.raises(LogCorrupt, match="note of CHARs"):
        columns(c=Kind(note, kind, TEXTS, str))


def test_a_field_that_was_added_is_not_in_the_note() -> None:
    """Spark leaves the note as it was, and goes on writing the table."""
    pair = pa.struct([("a", pa.string()), ("b", pa.string())])
    noted = with_chars(pa.field("s", pair), "struct<a:char(3)>")
    assert [char_lengths(field) for field in noted.type] == [[3], []]


def test_notes_of_other_types_are_not_read() -> None:
    for note in ("varchar(3)", "struct<char: (", "nchar(3)", "string"):
        assert char_lengths(columns(c=Kind(note, "string", TEXTS, str)).field("c")) == []


def test_a_note_with_the_names_from_before_a_rename_and_a_collation() -> None:
    note = "STRUCT<`x,>:` : CHAR( 3 ) collate UTF8_LCASE, y: varchar(2)>"
    assert char_lengths(columns(c=Kind(note, struct(PLAIN[:2]).delta, TEXTS, str)).field("c")) == [3]


def test_rows_are_padded_by_their_own_schema() -> None:
    """Compared with rows of a schema that has another length, or none, each row is what was delivered."""
    kinds = [char(3), char(5), PLAIN[1]]
    schemas = identified([columns(c=array(struct([kind])), d=array(kind)) for kind in kinds])
    every = united(schemas)
    for schema in schemas:
        read = restated(schema, every)
        assert [char_lengths(field) for field in read] == [char_lengths(field) for field in schema]


def test_a_change_of_chars_is_a_change_of_the_schema() -> None:
    before, after = columns(c=struct([char(3)]), d=char(2)), columns(c=struct([PLAIN[1]]), d=char(2))
    (described,) = describe_changes(before, after)
    assert described == "column c.f0 has other CHARs: its values are padded to other lengths"
