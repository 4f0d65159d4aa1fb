"""JSON of a mirror as it is compared: which texts are those of one value of the source, and which are not."""

import pyarrow as pa

from tailer_sinks.mirrors import comparable_json
from tests.support.cases import cases

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.float64()), ("c", pa.struct([("d", pa.string())]))])
MAP = pa.map_(pa.int64(), pa.string())


def compared(kind: pa.DataType, *texts: str | None) -> list[str | None]:
    return list(comparable_json(kind)(pa.array(texts, pa.large_string())).to_pylist())


@cases(
    ("kind", "one", "other"),
    [
        (STRUCT, '{"a":1,"b":2.5}', '{ "b": 2.5, "a": 1 }'),
        (STRUCT, '{"a":1,"b":null}', '{"a":1}'),
        (STRUCT, '{"c":{"d":null}}', '{"c":{}}'),
        (STRUCT, '{"b":2}', '{"b":2.0}'),
        (pa.list_(pa.decimal128(10, 2)), "[1.50]", "[1.5]"),
        (MAP, '[{"key":1,"value":"x"},{"key":2,"value":null}]', '[{"key":2},{"value":"x","key":1}]'),
        (pa.map_(pa.string(), pa.int64()), '{"k":1,"l":2}', '{"l":2,"k":1}'),
    ],
)
def test_texts_of_one_value(kind: pa.DataType, one: str, other: str) -> None:
    first, second = compared(kind, one, other)
    assert first == second


@cases(
    ("kind", "one", "other"),
    [
        (STRUCT, '{"a":1}', '{"a":"1"}'),
        (STRUCT, '{"b":0.0}', '{"b":-0.0}'),
        (STRUCT, '{"b":9007199254740993}', '{"b":9007199254740992}'),
        (STRUCT, '{"c":null}', '{"c":{}}'),
        (STRUCT, '{"a":1}', '{"a":1,"other":null}'),
        (STRUCT, "{}", None),
        (STRUCT, "{}", "no JSON"),
        (pa.list_(pa.int64()), "[1,2]", "[2,1]"),
        (pa.list_(pa.int64()), "[]", "[null]"),
        (pa.list_(pa.string()), '["NaN"]', "[NaN]"),
        (MAP, '[{"key":1,"value":"x"}]', '[{"key":1,"value":"x"},{"key":1,"value":"x"}]'),
        (pa.map_(pa.string(), pa.int64()), '{"k":null}', "{}"),
    ],
)
def test_texts_of_different_values(kind: pa.DataType, one: str, other: str | None) -> None:
    first, second = compared(kind, one, other)
    assert first != second
