"""Tables with Spark's answers: judged, written to a small archive, and read back.

They are histories with schema changes, and cases about one subject each.

An archive holds a table and, for every version of it, Spark's rows and change rows as Arrow files: exact in their
types, and highly compressed because successive versions are similar. File times date commits, so they are kept.
"""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather

from tailer.events import CHANGE_TYPE
from tailer.plan import Regime
from tests.support.follow import Followed, follow, plans, snapshot
from tests.support.histories.schema_evolution import Answer, EvolvingHistory
from tests.support.oracle.column_identity import Schema, restate, shared
from tests.support.oracle.rows import COME, METADATA, Rows, assert_same, gone_and_come, rows_of, type_name

__all__ = ["CASES_DATA", "HISTORIES", "RecordedTable", "judge", "read", "write"]

HISTORIES: Final = Path(__file__).parents[2] / "histories_data"
CASES_DATA: Final = Path(__file__).parents[2] / "cases_data"


@dataclass(frozen=True)
class RecordedTable:
    """A table, its operations, and Spark's answer for each version."""

    path: Path
    title: str
    story: list[str]
    schemas: dict[int, Schema]
    answers: dict[int, Answer]

    @classmethod
    def of(cls, history: EvolvingHistory) -> "RecordedTable":
        """Return the record of a history that was just made."""
        schemas = {version: history.schema_at(version) for version in history.metadata}
        title = f"seed {history.seed}, shape {history.shape}"
        return cls(history.path, title, history.story, schemas, history.answers)

    @property
    def first(self) -> int:
        """The first version whose commit still exists."""
        return min(int(file.stem) for file in (self.path / "_delta_log").glob("[0-9]" * 20 + ".json"))

    @property
    def last(self) -> int:
        """The newest version."""
        return len(self.story) - 1

    def partitions_moved(self, version: int) -> frozenset[str]:
        """Return the columns that are partition columns either before this version or from it on, but not both.

        Spark reads deleted rows with the new partitioning: these columns are null in its feed.
        """
        return frozenset(self._partitions(version) ^ self._partitions(version - 1))

    def _partitions(self, version: int) -> set[str]:
        for at in range(version, self.first - 1, -1):
            lines = (self.path / "_delta_log" / f"{at:020d}.json").read_text().splitlines()
            for action in map(json.loads, lines):
                if "metaData" in action:
                    return set(action["metaData"]["partitionColumns"])
        return set()

    def where(self, version: int, what: str) -> str:
        """Return the text that identifies the table in a failure."""
        operations = "\n".join(f"  {at}: {did}" for at, did in enumerate(self.story[: version + 1]))
        return f"{what}, version {version} of {self.title}, {self.path}\n{operations}"


def judge(recorded: RecordedTable) -> list[Followed]:
    """Judge every version by the fold and by Spark's feed, and every start and snapshot in between. Return them."""
    versions = follow(recorded.path, recorded.first)
    assert [version.plan.version for version in versions] == list(range(recorded.first, recorded.last + 1)), (
        recorded.title
    )
    before = rows_of(recorded.answers[recorded.first - 1].snapshot) if recorded.first else Rows()
    for version in versions:
        before = _judge_changes(recorded, version, before)
        at = version.plan.version
        assert_same(rows_of(snapshot(recorded.path, at).table, METADATA), before, recorded.where(at, "snapshot"))
        if at > recorded.first:
            assert plans(recorded.path, at, at) == [version.plan], recorded.where(at, "begun in the middle")
    return versions


def _judge_changes(recorded: RecordedTable, version: Followed, before: Rows) -> Rows:
    at = version.plan.version
    old, new = recorded.schemas.get(at - 1, recorded.schemas[at]), recorded.schemas[at]
    # The version itself writes the rows of change files, deleted ones like all others.
    deleted = new if version.plan.regime is Regime.CDC else old
    _judge_types(recorded, version, deleted is old)
    kept, come = gone_and_come(restate(before, old, deleted), version.tables, recorded.where(at, "fold"))
    after = rows_of(recorded.answers[at].snapshot)
    # A restored column brings its old values back, which no event can report.
    judged = shared(old, new) if version.plan.operation == "RESTORE" else new
    found = restate(kept, deleted, judged) + restate(come, new, judged)
    assert_same(found, restate(after, new, judged), recorded.where(at, "fold"))
    feed = recorded.answers[at].feed
    if feed is not None:
        moved = recorded.partitions_moved(at)
        ours = sum((_as_spark_reads(table, deleted, new) for table in version.tables), Rows())
        assert_same(_without(moved, ours), rows_of(feed, moved), recorded.where(at, "feed"))
    return after


def _without(columns: frozenset[str], rows: Rows) -> Rows:
    found: Rows = Rows()
    for row, count in rows.items():
        found[tuple((name, value) for name, value in row if name not in columns)] += count
    return found


def _as_spark_reads(table: pa.Table, deleted: Schema, new: Schema) -> Rows:
    """Return change rows with all columns of the version, as Spark reads a feed."""
    come = pc.is_in(table.column(CHANGE_TYPE), pa.array(COME))
    gone = rows_of(table.filter(pc.invert(come)))
    return rows_of(table.filter(come)) + restate(gone, deleted, new, keep=frozenset(METADATA))


def _judge_types(recorded: RecordedTable, version: Followed, deleted_is_old: bool) -> None:
    at = version.plan.version
    for batch in version.batches:
        gone = batch.rows.column(CHANGE_TYPE)[0].as_py() not in COME
        answer = recorded.answers[at - 1 if gone and deleted_is_old else at]
        found = [(field.name, type_name(field.type)) for field in batch.rows.schema]
        expected = [(field.name, type_name(field.type)) for field in answer.snapshot.schema]
        assert found[:-3] == expected, recorded.where(at, "columns")


def write(recorded: RecordedTable, archive: Path) -> None:
    """Write a table and Spark's answers into an archive."""
    answers = recorded.path.parent / "answers"
    answers.mkdir()
    for version, answer in recorded.answers.items():
        if version >= recorded.first - 1:
            _write_table(answer.snapshot, answers / f"{version}.snapshot")
            if answer.feed is not None:
                _write_table(answer.feed, answers / f"{version}.feed")
    facts = {
        "title": recorded.title,
        "story": recorded.story,
        "refusals": {version: answer.refusal for version, answer in recorded.answers.items()},
        "schemas": {
            version: schema
            for version, schema in recorded.schemas.items()
            if schema != recorded.schemas.get(version - 1)
        },
    }
    (answers / "facts.json").write_text(json.dumps(facts))
    archive.parent.mkdir(exist_ok=True)
    with tarfile.open(archive, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        # Similar files are adjacent, oldest first, for better compression.
        files = [file for file in (*recorded.path.rglob("*"), *answers.rglob("*")) if _belongs(file)]
        for file in sorted(files, key=lambda file: (file.suffix, file.parent, file.stat().st_mtime_ns, file.name)):
            tar.add(file, file.relative_to(recorded.path.parent), filter=_anonymous)


def _write_table(table: pa.Table, file: Path) -> None:
    plain = pa.table(table.combine_chunks().columns, schema=table.schema.remove_metadata())
    pyarrow.feather.write_feather(plain, str(file), compression="uncompressed")


def _belongs(file: Path) -> bool:
    return file.is_file() and file.suffix != ".crc"


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)
    return member


def read(archive: Path, folder: Path) -> RecordedTable:
    """Unpack an archive that `write` made into `folder`."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    answers = folder / "answers"
    facts: dict[str, Any] = json.loads((answers / "facts.json").read_bytes())
    schemas: dict[int, Schema] = {}
    for version in range(len(facts["story"])):
        schemas[version] = facts["schemas"].get(str(version)) or schemas[version - 1]
    found = {
        int(file.stem): Answer(
            pyarrow.feather.read_table(file),
            pyarrow.feather.read_table(feed) if (feed := file.with_suffix(".feed")).exists() else None,
            facts["refusals"][file.stem],
        )
        for file in answers.glob("*.snapshot")
    }
    return RecordedTable(folder / "table", facts["title"], facts["story"], schemas, found)
