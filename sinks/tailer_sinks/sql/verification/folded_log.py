"""The fold of a log of changes: the rows that it inserted, without those that it deleted.

Where the pipeline has delivered a snapshot, the fold begins with the last one, and where changes are lost, after them.
A snapshot that `tailer resnapshot` asked for has the task numbers of a backfill, and a gap announces it. Other
backfills repeat rows, so they are left out. So is what the log has of a version, or of a snapshot, that is not complete
yet.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ChangeType
from tailer.plan import BACKFILLS, SNAPSHOT_TASKS, TASKS
from tailer_sinks.encoding.typed import GAP
from tailer_sinks.sql.append import TABLE_ID, TASK, gap_task
from tailer_sinks.sql.databases.dialect import Connection
from tailer_sinks.sql.records import TableRecord

__all__ = ["Fold", "fold_of"]

_INSERTS: Final = (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE)
_DELETES: Final = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE)
_SNAPSHOT: Final = (
    f"({TASK} >= {SNAPSHOT_TASKS} AND NOT {TASK} BETWEEN {SNAPSHOT_TASKS + TASKS} "
    f"AND {SNAPSHOT_TASKS + (1 + BACKFILLS) * TASKS - 1})"
)
_LOSS: Final = f"{CHANGE_TYPE} = '{GAP}' AND {TASK} = -1"
_ANNOUNCED: Final = f"{CHANGE_TYPE} = '{GAP}' AND {TASK} < -1"  # before the snapshot of a command; nothing is lost


@dataclass(frozen=True, slots=True)
class Fold:
    """The conditions of the rows of a log whose difference is the fold."""

    inserted: str
    deleted: str


def fold_of(
    name: str, connection: Connection, table: str, record: TableRecord, version: int, commands: Collection[str]
) -> Fold:
    """Return the fold of `table`, a quoted name, at `version`. `name`: the sink's in errors. Raises `SinkRejected`.

    `commands`: the ids of the backfills that are complete.
    """
    complete = f"{COMMIT_VERSION} <= {version}"
    listed = ", ".join(f"'{kind}'" for kind in (*_INSERTS, *_DELETES, GAP))
    if connection.query(f"SELECT 1 FROM {table} WHERE {complete} AND {CHANGE_TYPE} NOT IN ({listed}) LIMIT 1"):
        reason = f"{record.table} has rows of another change type than Delta defines, so it has no fold"
        raise SinkRejected(name, reason, "It cannot be verified.")
    # A table that took the place of another one has versions of its own. One that was replaced under the same log goes
    # on, and has no snapshot.
    scope = f"{TABLE_ID} = '{_table_id(record)}' AND {complete}"
    tasks = {gap_task(command) for command in commands}
    if _snapshot(connection, f"{table} WHERE {scope}", tasks) is None:
        scope = complete
    rows = f"{table} WHERE {scope}"
    begin, snapshot = _snapshot(connection, rows, tasks) or (-1, _SNAPSHOT)
    lost = _last(connection, rows, _LOSS)
    changes = f"{COMMIT_VERSION} > {max(begin, lost)} AND {TASK} < {SNAPSHOT_TASKS}"
    folded = f"{scope} AND (({changes}) OR ({lost} <= {begin} AND {COMMIT_VERSION} = {begin} AND {snapshot}))"
    inserted, deleted = (", ".join(f"'{kind}'" for kind in kinds) for kinds in (_INSERTS, _DELETES))
    return Fold(f"{folded} AND {CHANGE_TYPE} IN ({inserted})", f"{folded} AND {CHANGE_TYPE} IN ({deleted})")


def _snapshot(connection: Connection, rows: str, tasks: Collection[int]) -> tuple[int, str] | None:
    """Return the version of the last snapshot among `rows`, and the condition of its rows; None: there is none.

    `tasks`: the task numbers of the gaps before snapshots that are complete.
    """
    usual = _last(connection, rows, _SNAPSHOT)
    gaps = connection.query(f"SELECT {COMMIT_VERSION}, {TASK} FROM {rows} AND {_ANNOUNCED}")
    ordered = max((int(version) for version, task in gaps if task in tasks), default=-1)
    if ordered <= usual:
        return None if usual < 0 else (usual, _SNAPSHOT)
    # A backfill of the same version, perhaps with a condition, has rows of the snapshot: the snapshot has the most.
    first = f"{TASK} - {TASK} % {TASKS}"
    ranges = connection.query(
        f"SELECT {first} FROM {rows} AND {COMMIT_VERSION} = {ordered} AND {TASK} >= {SNAPSHOT_TASKS} "
        f"GROUP BY {first} ORDER BY COUNT(*) DESC LIMIT 1"
    )
    begin = int(ranges[0][0]) if ranges else SNAPSHOT_TASKS  # the snapshot of an empty table has no rows
    return ordered, f"{TASK} BETWEEN {begin} AND {begin + TASKS - 1}"


def _last(connection: Connection, rows: str, condition: str) -> int:
    """Return the last version of the `rows` that fulfil a condition; -1: there are none."""
    ((version,),) = connection.query(f"SELECT max({COMMIT_VERSION}) FROM {rows} AND {condition}")
    return -1 if version is None else int(version)


def _table_id(record: TableRecord) -> str:
    return record.app_id.rpartition("/")[2].replace("'", "''")
