"""Avro records, read with nothing but the registry, as JSON with decoded Variants."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.request import urlopen

from fastavro import schemaless_reader

from tailer.variant import Variant
from tests.support.kafka.topics import Record

__all__ = ["AvroReader"]


class AvroReader:
    """A reader of records whose schemas are in the registry at `uri`."""

    def __init__(self, uri: str) -> None:
        self._uri: Final = uri
        self._schemas: dict[int, Any] = {}

    def as_json(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with keys and values in JSON."""
        return [replace(each, key=self._json(each.key), value=self._json(each.value)) for each in records]

    def _json(self, data: bytes | None) -> bytes | None:
        if data is None:
            return None
        assert data[:1] == b"\x00"
        value = schemaless_reader(io.BytesIO(data[5:]), self._schema(int.from_bytes(data[1:5], "big")), None)
        return json.dumps(_decoded(value), default=str).encode()

    def _schema(self, number: int) -> Any:
        if number not in self._schemas:
            with urlopen(f"{self._uri}/schemas/ids/{number}", timeout=60) as answer:
                self._schemas[number] = json.loads(json.load(answer)["schema"])
        return self._schemas[number]


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"metadata", "value"}:
        return json.loads(Variant(value["metadata"], value["value"]).to_json())
    return {name: _decoded(child) for name, child in value.items()}
