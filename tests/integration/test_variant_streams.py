"""A table with VARIANT columns through the programs: printed, in files, in another table, and compared."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tailer.events import VARIANT
from tailer.variant import json_texts
from tests.support.daemon.commands import background, tailer
from tests.support.oracle.recorded import CASES_DATA, read


@pytest.fixture(params=["shredded", "plain"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table of Spark's without a feed, whose files are rewritten."""
    return read(CASES_DATA / f"variants_{request.param}-copies-files.1.tar.xz", tmp_path).path


def lines(*arguments: object) -> list[dict[str, Any]]:
    """Return the rows that `tailer tail` prints."""
    done = tailer("tail", *arguments, "--from", "earliest", "--to", "latest", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_rows_are_printed_with_json_values(table: Path) -> None:
    rows = lines(table)
    inserted = {row["id"]: row["v"] for row in rows if row["_commit_version"] == 1}
    assert inserted[0] is None
    assert inserted[1] is None
    assert inserted[2] == [1, "two", None, {"a": 3}]
    assert inserted[3] == {
        "b": True,
        "d": "1.50",
        "f": 1.5,
        "g": -0.0,
        "n": "2026-01-02T03:04:05.000000",
        "t": "2026-01-02T03:04:05.678901Z",
        "x": "AP8=",
        "y": "2026-01-02",
    }
    assert inserted[5] == {"a": 5, "b": {"c": [5]}, "s": "x" * 70}
    shown = tailer("tail", table, "--from", "earliest", "--to", "latest", "--format", "table")
    assert shown.returncode == 0, shown.stderr
    assert '[1,"two",null,{"a":3}]' in shown.stdout


def test_only_changed_rows_of_rewritten_files(table: Path) -> None:
    """The UPDATE of version 2 rewrote a file of nine rows and changed two of them."""
    rows = [row for row in lines(table, "--carryovers", "drop") if row["_commit_version"] == 2]
    assert Counter((row["id"], row["_change_type"]) for row in rows) == Counter(
        (number, kind) for number in (0, 6) for kind in ("delete", "insert")
    )
    paired = [row for row in lines(table, "--compute-updates", "--key", "id") if row["_commit_version"] == 2]
    assert [row["v"] for row in paired if row["id"] == 0] == [None, {"a": 1}]


def configured(table: Path, kind: str, **options: str) -> Path:
    """Write a configuration that delivers the table up to its latest version."""
    sink = "".join(f'{name} = "{value}"\n' for name, value in options.items())
    config = table.parent / "tailer.toml"
    config.write_text(
        f'[pipelines.p]\ntable = "{table}"\nstart = "earliest"\n\n'
        f'[pipelines.p.sink]\nkind = "{kind}"\npath = "{table.parent / "target"}"\n{sink}'
    )
    return config


def test_parquet_files_have_both_fields(table: Path) -> None:
    target, expected = table.parent / "target", lines(table)
    rows: list[pa.Table] = []
    with background("run", "--config", configured(table, "files", format="parquet")) as daemon:
        for _ in range(300):
            # Names that begin with a dot are not complete.
            rows = [pq.read_table(file) for file in target.glob("**/[!.]*.parquet")] if target.exists() else []
            if sum(map(len, rows)) >= len(expected):
                break
            time.sleep(0.1)
        daemon.terminate()
        daemon.wait(300)
    assert all(part.schema.field("v").type == VARIANT for part in rows)
    found = [json.loads(text) if text else None for part in rows for text in json_texts(part["v"])]
    assert Counter(map(json.dumps, found)) == Counter(json.dumps(row["v"]) for row in expected)


def test_a_delta_target_has_the_same_values(table: Path) -> None:
    target, expected = table.parent / "target", lines(table)
    with background("run", "--config", configured(table, "delta")) as daemon:
        for _ in range(300):
            if (target / "_delta_log").exists() and DeltaTable(target).count() >= len(expected):
                break
            time.sleep(0.1)
        daemon.terminate()
        daemon.wait(300)
    rows = pa.table(DeltaTable(target).scan())
    assert '"name":"v","type":"variant"' in DeltaTable(target).schema().to_json()
    found = [json.loads(text) if text else None for text in json_texts(rows["v"])]
    assert Counter(map(json.dumps, found)) == Counter(json.dumps(row["v"]) for row in expected)
