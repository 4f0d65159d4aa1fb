"""The `schemaString` of a Delta table, under each way to map columns: the first byte says which."""

import json
from typing import Any

from tailer.formats.delta.schema import arrow_schema
from tailer.schema.columns import schema_from_text, schema_to_text
from tests.fuzz.target import Target, outcome

_MODES = ("none", "name", "id")


def _seeds() -> list[bytes]:
    item: dict[str, Any] = {
        "type": "array",
        "elementType": {"type": "map", "keyType": "string", "valueType": "decimal(10,2)"},
    }
    item["elementType"]["valueContainsNull"] = item["containsNull"] = True
    mapping = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
    kinds = ("long", "string", "timestamp_ntz", "variant", "binary", "date", "boolean", item)
    fields = [{"name": f"c{at}", "type": kind, "nullable": True, "metadata": {}} for at, kind in enumerate(kinds)]
    mapped = {"type": "struct", "fields": [{**fields[0], "metadata": mapping}]}
    nested = {"type": "struct", "fields": [*fields, {**fields[0], "name": "s", "type": mapped}]}
    return [bytes([at]) + json.dumps(each).encode() for at, each in enumerate((nested, mapped, mapped))]


def _run(data: bytes) -> None:
    text, mode = data[1:].decode("utf-8", "replace"), _MODES[sum(data[:1]) % 3]
    found = outcome(lambda: arrow_schema(text, mode, "t", 3))
    if found is not None:
        assert schema_from_text(schema_to_text(found)).equals(found, check_metadata=True)


TARGET = Target(_run, _seeds, ("tailer.formats.delta.schema", "tailer.schema.columns"))
