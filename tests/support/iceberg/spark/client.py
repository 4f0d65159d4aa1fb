"""The process of Spark that writes histories, as tests see it."""

import json
import os
import pickle
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.jars.where import jars
from tests.tiers import using

__all__ = ["Answer", "Changes", "SparkHistory", "SparkWriter", "Step"]

_ROOT: Final = Path(__file__).resolve().parents[4]
_PYTHON: Final = _ROOT / ".venv" / "iceberg" / "bin" / "python"


class WriterError(RuntimeError):
    """The process has ended, or cannot start."""


@dataclass(frozen=True)
class Changes:
    """The rows of Spark's changelog view, each with the kind of its change before it."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Answer:
    """The rows of a snapshot as Spark reads them, each with its row id and sequence number at the end if `ids`.

    `changes`: of the snapshot, if the view was asked for; a text is the error of the view.
    """

    columns: Sequence[str]
    ids: bool
    rows: Sequence[tuple[Any, ...]]
    changes: Changes | str | None


@dataclass(frozen=True)
class Step:
    """An operation of Spark, and the table after it. `snapshots`: those that are kept, by id."""

    operation: str
    error: str | None
    format: int
    current: int | None
    snapshots: Mapping[int, Mapping[str, Any]]
    refs: Mapping[str, tuple[int, bool]]

    def head(self, branch: str) -> int | None:
        """Return the id of a branch's snapshot."""
        return self.current if branch == "main" else self.refs[branch][0]

    def line(self, branch: str) -> list[Mapping[str, Any]]:
        """Return the kept snapshots of a branch, the oldest one first."""
        found, head = list[Mapping[str, Any]](), self.head(branch)
        while head is not None and head in self.snapshots:
            found.append(self.snapshots[head])
            head = found[-1]["parent"]
        return found[::-1]


class SparkWriter:
    """A process of Spark. `scratch`: the folder of its tables and answers."""

    def __init__(self, scratch: Path) -> None:
        using("spark")
        if not _PYTHON.exists():
            raise WriterError(f"no {_PYTHON}: `make .venv/iceberg/.synced` makes it")
        paths = ",".join(map(str, jars("iceberg-spark")))
        with (scratch / "spark.log").open("w") as log:
            self._process = subprocess.Popen(
                [_PYTHON, "-m", "tests.support.iceberg.spark.writer", scratch, paths],
                cwd=_ROOT,
                env={**os.environ, "TZ": "UTC"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, **order: Any) -> dict[str, Any]:
        """Give an order; return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise WriterError("Spark has ended: see spark.log in its folder")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@dataclass
class SparkHistory:
    """A table that a writer changes. `answers`: of all snapshots that there ever were, by id."""

    writer: SparkWriter
    seed: int
    location: Path
    answers: dict[int, Answer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    @classmethod
    def begin(cls, writer: SparkWriter, seed: int, plain: bool = False, keyed: bool = False) -> "SparkHistory":
        """Make a table. `plain`: its columns and partitions stay. `keyed`: each row has an id of its own."""
        name = f"{seed}p" if plain else f"{seed}"
        begun = writer.ask(do="new", name=name, seed=seed, plain=plain, keyed=keyed)
        return cls(writer, seed, Path(begun["location"]))

    def step(self, inserts: bool = False) -> Step:
        """Change the table. `inserts`: by new rows."""
        found = self.writer.ask(do="step", inserts=inserts)
        snapshots = {snapshot["id"]: snapshot for snapshot in found["snapshots"]}
        for number, snapshot in snapshots.items():
            if "rows" in snapshot:
                path = Path(snapshot["rows"])
                columns, ids, rows, view = pickle.loads(path.read_bytes())
                changes = Changes(*view) if isinstance(view, tuple) else view
                self.answers[number] = Answer(columns, ids, rows, changes)
                path.unlink()
        refs = {name: (snapshot_id, is_tag) for name, (snapshot_id, is_tag) in found["refs"].items()}
        last = Step(found["operation"], found["error"], found["format"], found["current"], snapshots, refs)
        self.steps.append(last)
        return last
