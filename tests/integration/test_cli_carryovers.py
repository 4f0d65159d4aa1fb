"""A table without a change feed, as a user follows it: `tailer tail` and `tailer run` show only changed rows."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.daemon.commands import background, tailer

Shown = list[tuple[int, str, int, float | None]]  # version, change type, id, amount
END_S = 60.0


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A hundred rows; three updated, one of them twice; one deleted; two inserted, one of them deleted again."""
    path = tmp_path / "orders"
    rows = pa.table({"id": pa.array(range(100), pa.int64()), "amount": [float(each) for each in range(100)]})
    write_deltalake(path, rows)
    table = DeltaTable(path)
    table.update(predicate="id IN (3, 4, 50)", updates={"amount": "amount + 0.5"})
    table.update(predicate="id = 4", updates={"amount": "amount + 0.25"})
    table.delete("id = 7")
    write_deltalake(path, rows.slice(0, 2).set_column(0, "id", pa.array([200, 201], pa.int64())), mode="append")
    DeltaTable(path).delete("id = 201")
    return path


def shown(text: str) -> Shown:
    rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    return [(row["_commit_version"], row["_change_type"], row["id"], row.get("amount")) for row in rows]


REST: Shown = [(3, "delete", 7, 7.0), (4, "insert", 200, 0.0), (4, "insert", 201, 1.0), (5, "delete", 201, 1.0)]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--net-changes", "--from", "1"), 2, "needs a range of versions"),
        (("--net-changes", "--to", "latest"), 2, "needs a range of versions"),
        (("--net-changes", "--from", "snapshot", "--to", "latest"), 2, "needs a range of versions"),
        (("--net-changes", "--from", "1", "--to", "9"), 2, "version 9 does not exist yet"),
        (
            ("--net-changes", "--from", "1", "--to", "5", "--carryovers", "keep"),
            2,
            "does not go with --net-changes",
        ),
        (("--from", "0", "--to", "5", "--key", "id"), 2, "without --compute-updates"),
        (("--from", "0", "--to", "5", "--compute-updates", "--key", "id,,x"), 2, "empty or a repeated name"),
        (("--from", "0", "--to", "5", "--compute-updates", "--key", "ID"), 2, "Did you mean 'id'?"),
        (("--from", "0", "--to", "5", "--compute-updates", "--key", "id", "--columns", "amount"), 2, "--columns"),
        (("--from", "1", "--to", "5", "--compute-updates"), 0, "updates cannot be computed"),
    ],
)
def test_unusable_options_are_reported(orders: Path, options: tuple[str, ...], code: int, words: str) -> None:
    done = tailer("tail", orders, *options)
    assert done.returncode == code, done.stderr
    assert words in done.stderr


def test_the_daemon_follows_the_comparison_options(orders: Path, tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    config.write_text(
        f'[pipelines.orders]\ntable = "{orders}"\nstart = "1"\ncompute_updates = true\nkey = ["id"]\n'
        f'[pipelines.orders.sink]\nkind = "files"\npath = "{tmp_path / "out"}"\n'
    )
    found: Shown = []
    with background("run", "--config", config) as daemon:
        deadline = time.monotonic() + END_S
        while (5, "delete", 201, 1.0) not in found:
            assert daemon.poll() is None
            assert time.monotonic() < deadline, found
            files = sorted((tmp_path / "out").rglob("[0-9]*.jsonl"))
            found = shown("".join(file.read_text() for file in files))
            time.sleep(0.1)
        daemon.terminate()
        assert daemon.wait(END_S) == 0
    assert [row[1] for row in found] == ["update_preimage", "update_postimage"] * 4 + [row[1] for row in REST]
