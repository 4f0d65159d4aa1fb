"""SIGKILL of the real daemon inside its first snapshot: it continues after the last delivered row.

The daemon is the real one except for its transactions, which end after ten rows; no setting does that. Delivered rows
are read from the destination with its own reader, and must be the beginning of the only valid sequence. The progress
reported by a new instance of the sink must be the position of the last row.
"""

import random
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Sink
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.files.sink import FilesSink
from tests.support.daemon.process import ROWS_TOGETHER, DeltaDestination, Destination, FilesDestination, SmallDaemon
from tests.support.streams import Growing
from tests.support.waiting import until

FILES: Final = 18
ROWS: Final = 60
KILLS: Final = 2
MANY_KILLS: Final = 9

Place = tuple[int, int]  # a file of the snapshot, a row in it
Row = tuple[int, str, int]  # version, change type, id


class Followed:
    """A table whose snapshot has many small files, and the destination of the daemon."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.table = Growing(folder / "source")
        names = [f"{number:03d}.parquet" for number in range(FILES)]
        self.snapshot: dict[Place, int] = {}
        for number, name in enumerate(names):
            ids = range(number * ROWS, number * ROWS + ROWS)
            self.table.data(name, ids, row_group_size=ROWS_TOGETHER)
            self.snapshot |= {(number, row): each for row, each in enumerate(ids)}
        self.table.commit(*map(self.table.add, names))
        self.table.commit(self.table.add(names[3], self._delete(3)), self.table.remove(names[3]))
        self.pinned = self.table.version
        self.kind = kind
        self.path = folder / "target"
        self.app_id = f"orders/{self.table.metadata['id']}"
        make = DeltaDestination if kind == "delta" else FilesDestination
        self.destination: Destination = make(self.path, self.app_id)
        self.config = folder / "tailer.toml"
        table = f'[pipelines.orders]\ntable = "{self.table.path}"\nstart = "snapshot"\npoll_interval_s = 0.05\n'
        self.config.write_text(f"{table}[pipelines.orders.sink]\n{self.destination.sink}")

    def _delete(self, number: int) -> dict[str, Any]:
        rows = range(5, ROWS, 3)
        for row in rows:
            del self.snapshot[number, row]
        return self.table.vector(number, rows)

    @property
    def expected(self) -> list[Row]:
        """Return all rows of the snapshot, in order."""
        rows = [(self.pinned, "insert", each) for each in self.snapshot.values()]
        return rows + [(version, "insert", each) for version, each in self.table.inserted]

    def delivered(self) -> list[Row]:
        """Read the delivered rows, in order; rows of a Delta table have no order within a commit."""
        rows: list[Row] = []
        for transaction in self.destination.transactions():
            found = [row[:3] for row in transaction]
            rows += sorted(found) if self.kind == "delta" else found
        return rows

    def check(self) -> Position:
        """Check that the delivered rows are a prefix of the expected ones that ends at the progress; return that."""
        position, rows = self.position(), self.delivered()
        assert position is not None
        assert len(rows) == self.rows_up_to(position)
        assert rows == self.expected[: len(rows)]
        return position

    def position(self) -> Position | None:
        """Return the progress that a new instance of the sink reports."""
        sink: Sink = FilesSink("files", self.path) if self.kind == "files" else DeltaSink("delta", str(self.path))
        progress = anyio.run(sink.progress, self.app_id)
        return None if progress is None else progress.position

    def rows_up_to(self, position: Position | None) -> int:
        """Return the number of rows up to a position."""
        if position is None:
            return 0
        if position.in_snapshot:
            reached = (position.task - SNAPSHOT_TASKS, position.row)
            return sum(place <= reached for place in self.snapshot)
        return sum(row[0] <= position.version for row in self.expected)

    def transactions(self) -> int:
        """Count the transactions without opening a file."""
        folder = self.path / "_delta_log" if self.kind == "delta" else self.path / self.app_id
        return sum(1 for _ in folder.glob("[0-9]*.json*"))


@pytest.fixture(params=["delta", "files"])
def followed(tmp_path: Path, request: pytest.FixtureRequest) -> Followed:
    """One table and one destination."""
    return Followed(tmp_path, str(request.param))


def kill_behind(followed: Followed, daemon: SmallDaemon, transactions: int) -> Position:
    """Kill the daemon after so many transactions in total; check the delivered rows and return their end."""

    def is_reached() -> bool:
        assert daemon.process.poll() is None, daemon.said
        return followed.transactions() >= transactions

    # The daemon must not get far beyond this transaction.
    until(is_reached, followed.transactions, lambda: daemon.said, look_s=0.001)
    daemon.kill()
    return followed.check()


def finish(followed: Followed, daemon: SmallDaemon) -> None:
    """Let the daemon deliver the rest."""
    until(lambda: followed.position() == Position.end(followed.table.version), followed.position, lambda: daemon.said)
    assert daemon.terminate() == 0, daemon.said
    assert followed.delivered() == followed.expected


@pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.nightly)])
def test_killed_again_and_again(followed: Followed, started: list[SmallDaemon], kills: int) -> None:
    moments = random.Random(len(followed.kind))
    reached: list[Position] = []
    for number in range(kills):
        started.append(SmallDaemon(followed.config))
        position = kill_behind(followed, started[-1], followed.transactions() + moments.randint(1, 20))
        assert position.in_snapshot, f"over before it could be killed: {position}"
        assert position.version == followed.pinned
        assert all(before < position for before in reached), f"{position} after {reached}"
        reached.append(position)
        followed.table.insert([1_000_000 + number])  # later commits are not part of the snapshot
    started.append(SmallDaemon(followed.config))
    finish(followed, started[-1])
    print(f"killed at {[(position.task - SNAPSHOT_TASKS, position.row) for position in reached]}")


@pytest.mark.sampled(2)
def test_killed_where_the_snapshot_ends(followed: Followed, started: list[SmallDaemon]) -> None:
    """The position inside the snapshot becomes invalid with its last rows, not before and not after."""
    almost = len(followed.snapshot) // ROWS_TOGETHER - 6
    reached: list[Position] = []
    while sum(position.closes_version for position in reached) < 2:
        started.append(SmallDaemon(followed.config))
        reached.append(kill_behind(followed, started[-1], max(almost, followed.transactions() + 1)))
        assert reached == sorted(set(reached)), reached
        followed.table.insert([2_000_000 + len(reached)])
    assert reached[0].in_snapshot
    started.append(SmallDaemon(followed.config))
    finish(followed, started[-1])
    print(f"killed at {reached[:-2]} inside")
