"""The columns that leave: their names, types, identity and values."""

import hashlib
import hmac
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.errors import ConfigError, ExpressionFailed
from tailer.events import METADATA_FIELDS
from tailer.schema.columns import physical_name, restated, select_columns
from tailer.shape.functions import read_secret
from tailer.shape.parse.texts import parse_select
from tailer.shape.select import Select
from tests.support.cases import cases

IDENTITY = {b"PARQUET:field_id": b"7"}
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int32(), metadata=IDENTITY),
        ("email", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("tags", pa.list_(pa.string())),
        ("home", pa.struct([("city", pa.string())])),
    ]
)
ROWS = pa.record_batch(
    [
        pa.array([1, 2], pa.int32()),
        ["a@x", None],
        pa.array(["1.50", "2.25"]).cast(pa.decimal128(9, 2)),
        [["t"], []],
        [{"city": "Bonn"}, None],
    ],
    schema=pa.schema([field.remove_metadata() for field in COLUMNS]),
).append_column("_change_type", pa.array(["insert", "delete"]))


def apply(text: str) -> pa.RecordBatch:
    """Return the rows as a `select` gives them."""
    select = parse_select(text, COLUMNS)
    return made(select, select.schema)


def made(select: Select, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the columns of `schema`."""
    columns = select.making(schema)
    read = [ROWS.column(field.name).cast(field.type) for field in columns.read]
    metadata = [pa.nulls(ROWS.num_rows, field.type) for field in METADATA_FIELDS[1:]]
    schema = pa.schema([*(field.remove_metadata() for field in columns.read), *METADATA_FIELDS])
    return columns.apply(pa.RecordBatch.from_arrays([*read, ROWS["_change_type"], *metadata], schema=schema))


@cases(
    ("text", "expected"),
    [
        ("id, email", {"id": [1, 2], "email": ["a@x", None]}),
        ("EMAIL AS mail", {"mail": ["a@x", None]}),
        ("* EXCLUDE (email, home, tags, price)", {"id": [1, 2]}),
        ("* EXCEPT (email, home, tags, id)", {"price": ROWS["price"].to_pylist()}),
        ("home.city AS city, id + 1 AS n", {"city": ["Bonn", None], "n": [2, 3]}),
        ("'x' AS email, NULL AS id", {"email": ["x", "x"], "id": [None, None]}),
        ("concat('***', right(email, 2)) AS email", {"email": ["***@x", None]}),
        ("sha2(email, 256) AS email", {"email": [hashlib.sha256(b"a@x").hexdigest(), None]}),
    ],
)
def test_values(text: str, expected: dict[str, list[object]]) -> None:
    found = apply(text)
    assert found.schema.names[len(expected) :] == [field.name for field in METADATA_FIELDS]
    assert found.select([*expected, "_change_type"]).to_pydict() == {**expected, "_change_type": ["insert", "delete"]}


def test_a_column_keeps_its_type_its_array_and_its_identity() -> None:
    select = parse_select("tags AS labels, price, id AS number, * EXCLUDE (id, tags, price)", COLUMNS)
    assert select.schema.names == ["labels", "price", "number", "email", "home"]
    number = select.schema.field("number")
    assert (number.type, physical_name(number), number.metadata[b"PARQUET:field_id"]) == (pa.int32(), "id", b"7")
    found = made(select, select.schema)
    assert found.schema.types[:5] == select.schema.types
    assert found["labels"].buffers()[1].address == ROWS["tags"].buffers()[1].address


def test_an_expression_has_a_type_of_its_own() -> None:
    select = parse_select("id * 2 AS id, NULL AS price, CAST(NULL AS DATE) AS day", COLUMNS)
    assert select.schema.equals(pa.schema([("id", pa.int32()), ("price", pa.decimal128(9, 2)), ("day", pa.date32())]))
    assert not {*map(physical_name, select.schema)} & {*COLUMNS.names}


@cases(
    ("text", "reason"),
    [
        ("", "leaves no column|this is no"),
        ("id,", "Spark cannot read this"),
        ("id, id", "two columns id"),
        ("id, email AS ID", "two columns ID"),
        ("id, _commit_version AS v", "_commit_version is a metadata column, which expressions cannot read"),
        ("id AS _Commit_Version", "metadata column _Commit_Version"),
        ("*, email AS email", "two columns email"),
        ("mail", "no column mail"),
        ("id + 1", "has no name"),
        ("id FROM t", "no list of columns"),
        ("id AS _change_type", "metadata column _change_type"),
        ("* EXCLUDE (mail)", "no column mail"),
        ("* EXCLUDE (upper(email))", "EXCLUDE takes names of columns alone"),
        ("* EXCLUDE (home.email)", "EXCLUDE takes names of columns alone"),
        ("NULL AS day", "a null needs a type"),
        ("NULL AS home", "a null needs a type"),
        ("rand() AS r", "rand"),
        ("max(id) AS m", "max"),
        ("hmac_sha256(email, 'MASK_KEY') AS m", "no place of a secret"),
        ("hmac_sha256(email, 'env:THERE_IS_NONE') AS m", "the environment has no THERE_IS_NONE"),
        ("hmac_sha256(email, 'file:/there/is/none') AS m", "cannot be read"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_select(text, COLUMNS)


def test_an_error_does_not_show_the_value() -> None:
    with pytest.raises(ExpressionFailed, match="cannot be converted") as failed:
        apply("CAST(email AS INT) AS n")
    assert "a@x" not in str(failed.value)
    assert failed.value.__cause__ is None


def test_a_keyed_hash_has_its_secret_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_secret.cache_clear()
    monkeypatch.setenv("MASK_KEY", "from the environment")
    (tmp_path / "mask").write_text("from a file\n")
    for place, secret in (("env:MASK_KEY", b"from the environment"), (f"file:{tmp_path}/mask", b"from a file")):
        expected = hmac.new(secret, b"a@x", "sha256").hexdigest()
        assert apply(f"hmac_sha256(email, '{place}') AS m")["m"].to_pylist() == [expected, None]
        select = parse_select(f"hmac_sha256(email, '{place}') AS m", COLUMNS)
        for text in (select.to_text(), repr(select), pickle.dumps(select).decode("latin-1")):
            assert secret.decode() not in text


def test_json_and_pickle() -> None:
    select = parse_select("id AS n, upper(email) AS email, home.city AS city", COLUMNS)
    assert Select.from_text(select.to_text()) == select == pickle.loads(pickle.dumps(select))
    assert made(Select.from_text(select.to_text()), select.schema) == made(select, select.schema)


def test_some_of_the_columns_are_made_from_no_others() -> None:
    select = parse_select("id AS n, upper(email) AS email, home.city AS city", COLUMNS)
    assert select.making(select_columns(select.schema, ["city"])).read.names == ["home"]


def test_columns_as_a_later_version_has_them() -> None:
    """Compared rows have the columns of the last version: wider, under its names, and null where they are added."""
    later = pa.schema([field.with_type(pa.int64()) if field.name == "id" else field for field in COLUMNS])
    text = "email AS home, upper(email) AS email, id, id * 2 AS twice"
    wanted = pa.schema([("new", pa.date32()), *parse_select(text, later).schema])
    select = parse_select(text, COLUMNS)
    found = made(select, restated(select.schema, wanted))
    assert found.schema.types[:5] == [pa.date32(), pa.string(), pa.string(), pa.int64(), pa.int64()]
    assert found.select(wanted.names).to_pylist() == [
        {"new": None, "home": "a@x", "email": "A@X", "id": 1, "twice": 2},
        {"new": None, "home": None, "email": None, "id": 2, "twice": 4},
    ]
