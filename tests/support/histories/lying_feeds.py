"""Tables whose change feeds lie, as writers have made them: each lie is a version of a small table written by hand.

`files` is what the data files say of that version, `feed` what a reader of the feed is told. Rows are (change type, id,
value).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa

from tailer.cli.doctor.feed import FeedCheck, check_feed
from tailer.config.tables import TableRef, open_files
from tests.support.tables.log_files import (
    add,
    cdc,
    commit_info,
    metadata,
    parquet,
    protocol,
    remove,
    schema_string,
    write_commit,
)

__all__ = ["LIES", "Lie", "checked"]

Row = tuple[str, int, str]
PREIMAGE: Final = "update_preimage"
POSTIMAGE: Final = "update_postimage"
# Files of the table before the lie; the last one makes it large enough for `doctor` to see that `id` is its key.
BEFORE: Final = {
    "a": [(1, "a"), (2, "b"), (3, "c")],
    "b": [(4, "d"), (5, "e")],
    "rest": [(number, "r") for number in range(100, 220)],
}


@dataclass(frozen=True)
class Lie:
    """A lie about version 1, which `removes` files, `adds` others, and says `feed` of that. `named`: ids that differ.

    `known`: the same thing as somebody met it.
    """

    known: str
    operation: str
    removes: str
    adds: dict[str, list[tuple[int, str]]]
    feed: list[Row]
    files: list[Row]
    named: set[int]

    def write(self, table: Path, *, recorded: bool = True) -> Path:
        """Write the table: version 0 with the rows `BEFORE`, the lie, and a version 2 whose feed is right.

        `recorded`: whether version 1 has a change file.
        """
        schema = schema_string(id="long", value="string")
        feed = {"delta.enableChangeDataFeed": "true"}
        actions = [protocol(), metadata(schema, **feed), *(write_rows(table, *file) for file in BEFORE.items())]
        write_commit(table, 0, *actions)
        actions = [commit_info(operation=self.operation), *(remove(f"{name}.parquet") for name in self.removes)]
        actions += [write_rows(table, name, rows) for name, rows in self.adds.items()]
        if recorded:
            actions.append(write_changes(table, "lie", self.feed))
        write_commit(table, 1, *actions)
        truth = write_changes(table, "truth", [("insert", 9, "z")])
        write_commit(table, 2, commit_info(operation="MERGE"), write_rows(table, "z", [(9, "z")]), truth)
        return table


def checked(table: Path) -> FeedCheck:
    """Compare the feed of all versions of a table with its data files."""
    return anyio.run(check_feed, TableRef(str(table)), 10_000, None, open_files(), lambda _: None)


def write_rows(table: Path, name: str, rows: Iterable[tuple[int, str]]) -> dict[str, Any]:
    """Write a data file; return its add."""
    ids, values = zip(*rows, strict=True)
    path = parquet(table / f"{name}.parquet", pa.table({"id": pa.array(ids, pa.int64()), "value": values}))
    return add(path.name, size=path.stat().st_size)


def write_changes(table: Path, name: str, rows: Iterable[Row]) -> dict[str, Any]:
    """Write a change file, maybe without a row; return its action."""
    types, ids, values = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"id": pa.array(ids, pa.int64()), "value": pa.array(values, pa.string())}
    changes = pa.table({**columns, "_change_type": pa.array(types, pa.string())})
    path = parquet(table / "_change_data" / f"{name}.parquet", changes)
    return cdc(f"_change_data/{path.name}", size=path.stat().st_size)


LIES: Final = (
    Lie(
        known="delta#1606: the change file of a DELETE lacks a row",
        operation="DELETE",
        removes="a",
        adds={"c": [(1, "a")]},
        feed=[("delete", 2, "b")],
        files=[("delete", 2, "b"), ("delete", 3, "c")],
        named={3},
    ),
    Lie(
        known="delta#1500: a MERGE that changed nothing is said to insert what was there",
        operation="MERGE",
        removes="a",
        adds={"c": BEFORE["a"]},
        feed=[("insert", *row) for row in BEFORE["a"]],
        files=[],
        named={1, 2, 3},
    ),
    Lie(
        known="delta#2340: the changes of one of two rewritten files are recorded, and one of them with a wrong value",
        operation="UPDATE",
        removes="ab",
        adds={"c": [(1, "A"), (2, "b"), (3, "c")], "d": [(4, "d"), (5, "E")]},
        feed=[(PREIMAGE, 1, "a"), (POSTIMAGE, 1, "?")],
        files=[("delete", 1, "a"), ("delete", 5, "e"), ("insert", 1, "A"), ("insert", 5, "E")],
        named={1, 5},
    ),
    Lie(
        known="delta-rs#2362: a MERGE removes a file that it did not write again",
        operation="MERGE",
        removes="ab",
        adds={"c": [(1, "A"), (2, "b"), (3, "c")]},
        feed=[(PREIMAGE, 1, "a"), (POSTIMAGE, 1, "A")],
        files=[("delete", 1, "a"), ("delete", 4, "d"), ("delete", 5, "e"), ("insert", 1, "A")],
        named={4, 5},
    ),
    Lie(
        known="sail#2548: a MERGE writes a file again and does not remove the old one",
        operation="MERGE",
        removes="",
        adds={"c": [(1, "A"), (2, "b"), (3, "c")]},
        feed=[(PREIMAGE, 1, "a"), (POSTIMAGE, 1, "A")],
        files=[("insert", 1, "A"), ("insert", 2, "b"), ("insert", 3, "c")],
        named={1, 2, 3},
    ),
    Lie(
        known="a DELETE with an empty change file",
        operation="DELETE",
        removes="b",
        adds={},
        feed=[],
        files=[("delete", 4, "d"), ("delete", 5, "e")],
        named={4, 5},
    ),
)
