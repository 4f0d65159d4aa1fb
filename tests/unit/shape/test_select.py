"""The columns that leave: their names, types, identity and values."""

import hashlib
import hmac
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from tailer.errors import ConfigError, ExpressionFailed
from tailer.shape.kernels.keyed_hash import read_secret
from tailer.shape.select import Select, parse_select

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
    return select.apply(ROWS.select([*select.fields.names, "_change_type"]))


@pytest.mark.parametrize(
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
    assert apply(text).to_pydict() == {**expected, "_change_type": ["insert", "delete"]}


def test_a_column_keeps_its_type_its_array_and_its_identity() -> None:
    select = parse_select("tags AS labels, price, id AS number, * EXCLUDE (id, tags, price)", COLUMNS)
    assert select.schema.names == ["labels", "price", "number", "email", "home"]
    assert select.schema.field("number").equals(pa.field("number", pa.int32(), metadata=IDENTITY), check_metadata=True)
    found = select.apply(ROWS)
    assert found.schema.types == [*select.schema.types, pa.string()]
    assert found["labels"].buffers()[1].address == ROWS["tags"].buffers()[1].address


def test_an_expression_has_a_type_of_its_own() -> None:
    select = parse_select("id * 2 AS id, NULL AS price, CAST(NULL AS DATE) AS day", COLUMNS)
    assert select.schema.equals(
        pa.schema([("id", pa.int32()), ("price", pa.decimal128(9, 2)), ("day", pa.date32())]), check_metadata=True
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "leaves no column|this is no"),
        ("id,", "no list of columns"),
        ("id, id", "two columns id"),
        ("*, email AS email", "two columns email"),
        ("mail", "no column mail"),
        ("id + 1", "has no name"),
        ("id FROM t", "no list of columns"),
        ("id AS _change_type", "metadata column _change_type"),
        ("* EXCLUDE (mail)", "no column mail"),
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
    assert Select.from_text(select.to_text()).apply(ROWS.select(["id", "email", "home"])).num_columns == 3
    assert select.only(["city"]).fields.names == ["home"]
