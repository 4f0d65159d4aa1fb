"""Structs in structs as columns of a `select`, where a version renames and adds their fields and rewrites rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailer
from tests.support.tables.log_files import add, metadata, parquet, protocol, remove, write_commit

METADATA = ("_commit_version", "_commit_timestamp")


def column(name: str, number: int, kind: Any) -> dict[str, Any]:
    """Make a column of a schema, called p and its number in files."""
    mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"p{number}"}
    return {"name": name, "type": kind, "nullable": True, "metadata": mapping}


def struct(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns)}


def schema(*geo: dict[str, Any]) -> dict[str, Any]:
    """Make the metadata of a table with the fields of `address.geo`."""
    points = {"type": "array", "elementType": struct(*geo), "containsNull": True}
    address = struct(column("geo", 3, struct(*geo)), column("points", 6, points))
    columns = struct(column("id", 1, "long"), column("address", 2, address))
    return metadata(json.dumps(columns), **{"delta.columnMapping.mode": "name"})


def write(folder: Path, name: str, places: list[dict[str, float] | None]) -> int:
    """Write a file with these places; return its size."""
    kind = pa.struct([("p4", pa.float64()), ("p5", pa.float64())])
    address = pa.struct([("p3", kind), ("p6", pa.list_(kind))])
    rows = [{"p3": place, "p6": [place, None]} for place in places]
    numbers = pa.array(range(len(places)), pa.int64())
    return parquet(folder / name, pa.table({"p1": numbers, "p2": pa.array(rows, address)})).stat().st_size


@pytest.mark.parametrize("path", ["geo", "points"])
def test_a_version_may_exchange_the_names_of_fields_and_add_one(tmp_path: Path, path: str) -> None:
    old, new = ({"p4": 1.0, "p5": 2.0}, {"p4": 3.0, "p5": 2.0})
    sizes = [write(tmp_path, "a", [old, old, None]), write(tmp_path, "b", [old, new, None])]
    north, east = column("north", 4, "double"), column("east", 5, "double")
    write_commit(tmp_path, 0, protocol(3, ["columnMapping"]), schema(north, east), add("a", size=sizes[0]))
    exchanged = schema(column("east", 4, "double"), column("north", 5, "double"), column("height", 7, "double"))
    write_commit(tmp_path, 1, exchanged, remove("a", size=sizes[0]), add("b", size=sizes[1]))

    select, key = f"id, address.{path} AS place", ["id"]
    batches = tailer.changes(str(tmp_path), start=1, select=select, compute_updates=True, key=key)
    rows = [row for batch in batches for row in batch.drop_columns(METADATA).to_pylist()]
    images = [{"east": east, "north": 2.0, "height": None} for east in (1.0, 3.0)]
    places = images if path == "geo" else [[image, None] for image in images]
    assert rows == [
        {"id": 1, "place": place, "_change_type": f"update_{image}"}
        for place, image in zip(places, ("preimage", "postimage"), strict=True)
    ]
