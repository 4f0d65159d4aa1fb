"""`identified` and `united`: the identity of columns over several schemas, and the union of these."""

import pyarrow as pa

from tailer.schema.columns import FIELD_ID, PHYSICAL_NAME, column_id, dropped_column, physical_name, restated
from tailer.schema.identity import identified, renewed, united
from tests.support.cases import cases

LONG, INT, TEXT = pa.int64(), pa.int32(), pa.string()


def mapped(name: str, stored: str, kind: pa.DataType = LONG, number: int | None = None) -> pa.Field:
    known_by = {PHYSICAL_NAME: stored.encode()}
    return pa.field(name, kind, metadata=known_by if number is None else known_by | {FIELD_ID: str(number).encode()})


def columns(text: str) -> pa.Schema:
    """Parse columns: `a`, `a=p` with the physical name p, `a=p#1` with the field id 1 as well."""
    fields = []
    for each in text.split():
        name, _, stored = each.partition("=")
        stored, _, number = stored.partition("#")
        fields.append(mapped(name, stored, LONG, int(number) if number else None) if stored else pa.field(name, LONG))
    return pa.schema(fields)


@cases(
    ("schemas", "called"),
    [
        (["a", "a"], ["a a"]),
        (["a", "a b", "a"], ["a a a"]),
        # A dropped column that returns, by RESTORE or in the remaining files, is the same column.
        (["a b", "a", "a b"], ["a a a", "b - b"]),
        # Mapped by name, by id, and by name again.
        (["a", "a=a", "b=a"], ["a a b"]),
        (["a", "b=a", "b=a#4", "c=a"], ["a b b c"]),
        (["a=p#1", "a=p#2"], ["a -"]),
        (["a=p#1", "a=p", "a=p#2"], ["a a -"]),
        # Mapping removed: columns are matched by name; later physical names are the logical ones.
        (["a=p", "a", "a b"], ["a a a"]),
        (["a=b b=a", "a b", "a b"], ["a a a", "b b b"]),
        (["x=a b=p", "b=p", "b", "a b"], ["x - - -", "b b b b"]),
        (["a", "b=a", "b", "c=b"], ["a b b c"]),
        # Mapping removed in a version with other changes: only columns that never had another physical name match.
        (["a=a b=p", "b a c"], ["a a", "b -"]),
        (["a=b b=a", "b a"], ["a -", "b -"]),
    ],
)
def test_which_column_is_which(schemas: list[str], called: list[str]) -> None:
    """The names of each column of the first schema in all schemas, `-` where it is missing."""
    found = identified([columns(each) for each in schemas])
    names = [{column_id(field): field.name for field in schema} for schema in found]
    assert [" ".join(each.get(column_id(field), "-") for each in names) for field in found[0]] == called


A, AB = columns("a"), columns("a b")


def nested(*fields: pa.Field) -> pa.Schema:
    return pa.schema([mapped("m", "p0", pa.map_(TEXT, pa.list_(pa.struct(list(fields)))))])


def test_fields_on_every_level() -> None:
    plain = pa.schema([("m", pa.map_(TEXT, pa.list_(pa.struct([("x", LONG), ("y", LONG)]))))])
    before, moved, after = identified([nested(mapped("x", "y"), mapped("y", "x")), plain, nested(mapped("y", "p9"))])
    assert dropped_column(before, moved) is None
    assert dropped_column(moved, before) is None
    assert dropped_column(moved, after) == "m"
    inner = restated(before, moved).field("m").type.item_type.value_type
    assert [(field.name, physical_name(field)) for field in inner] == [("x", "y"), ("y", "x")]


def test_all_columns_of_several_schemas() -> None:
    one = pa.schema([mapped("a", "p1", INT), mapped("s", "p2", pa.struct([mapped("x", "p3"), mapped("y", "p4")]))])
    other = pa.schema([mapped("s", "p2", pa.struct([mapped("X", "p5"), mapped("z", "p4")])), mapped("A", "p6", TEXT)])
    wider = pa.schema([mapped("a", "p1", LONG)])
    every = united(identified([one, other, wider]))
    assert [(field.name, physical_name(field)) for field in every] == [("a", "p1"), ("s", "p2"), ("A 2", "p6")]
    assert every.field("a").type == LONG
    inner = every.field("s").type
    assert [(field.name, physical_name(field)) for field in inner] == [("x", "p3"), ("z", "p4"), ("X 2", "p5")]


def test_columns_that_only_older_rows_have_are_not_theirs() -> None:
    old, new = identified([AB, A])
    rows = restated(new, united([old, new]))
    assert [physical_name(field) for field in rows] == ["a", "tailer.absent: b"]
    assert dropped_column(rows, new) is None


@cases(
    ("before", "after", "names"),
    [
        ("a=1 b=2", "a=1 b=3", [("b",)]),
        ("a=1 b=2", "a=2 b=1", [("a",), ("b",)]),  # swapped
        ("a=1 b=2", "a=1 B=3", [("B",)]),  # case is no difference in an expression
        ("a=1 b=2", "b=1", [("b",)]),  # dropped, and another one renamed to it
        ("a=1 b=2", "c=1 b=2 d=3", []),
        ("a b", "a=a b=b", []),
    ],
)
def test_names_that_belong_to_another_column(before: str, after: str, names: list[tuple[str, ...]]) -> None:
    old, new = columns(before), columns(after)
    assert renewed(old, new) == (tuple(names), ())
    inside = [pa.schema([mapped("s", "s0", pa.struct(list(schema)))]) for schema in (old, new)]
    if "=" in before:
        assert renewed(*inside) == (tuple(("s", *name) for name in names), ())


@cases(
    ("narrow", "wide", "is_widened"),
    [
        (INT, LONG, False),
        (pa.decimal128(5, 2), pa.decimal128(10, 2), False),
        (pa.null(), LONG, False),
        (pa.decimal128(5, 2), pa.decimal128(10, 4), True),
        (INT, pa.float64(), True),
        (LONG, pa.decimal128(20, 0), True),
        (pa.float32(), pa.float64(), True),
        (pa.date32(), pa.timestamp("us"), True),
    ],
)
def test_columns_whose_values_have_another_text(narrow: pa.DataType, wide: pa.DataType, is_widened: bool) -> None:
    old, new = (pa.schema([("a", kind), ("s", pa.struct([("b", kind)]))]) for kind in (narrow, wide))
    assert renewed(old, new) == ((), (("a",), ("s", "b")) if is_widened else ())
