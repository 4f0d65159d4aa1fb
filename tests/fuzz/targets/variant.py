"""Values of Variant: the length of the metadata, the metadata, the value. All ways to decode it agree."""

from typing import Any

import msgspec
import pyarrow as pa

from tailer.variant import UNSHREDDED, InvalidVariant, Variant, json_texts, unshred
from tests.fuzz.target import Target, outcome
from tests.support.variant.encoder import metadata


def _seeds() -> list[bytes]:
    with_names = metadata(["a", "b"])
    scalars = [bytes([kind << 2]) + bytes(16) for kind in range(21)]
    small = [each[: 1 + size] for each in scalars for size in (0, 1, 4, 8, 16)]
    return [bytes([len(with_names)]) + with_names + value for value in (*small, b"\x03\x02\x00\x01\x02\0\0")]


def _attempt(work: Any) -> Any:
    return outcome(work, InvalidVariant)


def _run(data: bytes) -> None:
    size = sum(data[:1])
    names, value = data[1 : 1 + size], data[1 + size :]
    text = _attempt(lambda: Variant(names, value).to_json())
    python = _attempt(lambda: repr(Variant(names, value).to_python()))
    assert (text is None) == (python is None)
    for path in ("$.a", "$[0]", "$[1].b"):
        _attempt(lambda path=path: Variant(names, value).get(path))
    column = pa.array([{"metadata": names, "value": value}], UNSHREDDED)
    if text is None:
        assert _attempt(lambda: json_texts(column)) is None
    else:
        msgspec.json.decode(text)
        assert json_texts(column) == json_texts(unshred(column)) == [text]


TARGET = Target(
    _run,
    _seeds,
    tuple(f"tailer.variant.{name}" for name in ("decode", "metadata", "scalars", "text", "value", "batch.texts")),
)
