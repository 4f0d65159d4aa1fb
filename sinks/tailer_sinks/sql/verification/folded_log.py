"""The fold of a log of changes: the rows that it inserted, without those that it deleted.

Where the pipeline has delivered a snapshot, the fold begins with the last one, and where changes are lost, after them.
Backfills repeat rows, so they are left out. So is what the log has of a version that is not complete yet.
"""

from dataclasses import dataclass
from typing import Final

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ChangeType
from tailer.plan import BACKFILLS, SNAPSHOT_TASKS, TASKS
from tailer_sinks.encoding.typed import GAP
from tailer_sinks.sql.append import TABLE_ID, TASK
from tailer_sinks.sql.databases.dialect import Connection
from tailer_sinks.sql.records import TableRecord

__all__ = ["Fold", "fold_of"]

_INSERTS: Final = (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE)
_DELETES: Final = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE)
_SNAPSHOT: Final = (
    f"({TASK} >= {SNAPSHOT_TASKS} AND NOT {TASK} BETWEEN {SNAPSHOT_TASKS + TASKS} "
    f"AND {SNAPSHOT_TASKS + (1 + BACKFILLS) * TASKS - 1})"
)
_LOSS: Final = f"{CHANGE_TYPE} = '{GAP}' AND {TASK} = -1"  # other gaps are before a backfill, and nothing is lost


@dataclass(frozen=True, slots=True)
class Fold:
    """The conditions of the rows of a log whose difference is the fold."""

    inserted: str
    deleted: str


def fold_of(name: str, connection: Connection, table: str, record: TableRecord, version: int) -> Fold:
    """Return the fold of `table`, a quoted name, at `version`. `name`: the sink's in errors. Raises `SinkRejected`."""
    complete = f"{COMMIT_VERSION} <= {version}"
    known = ", ".join(f"'{each}'" for each in (*_INSERTS, *_DELETES, GAP))
    if connection.query(f"SELECT 1 FROM {table} WHERE {complete} AND {CHANGE_TYPE} NOT IN ({known}) LIMIT 1"):
        reason = f"{record.table} has rows of another change type than Delta defines, so it has no fold"
        raise SinkRejected(name, reason, "It cannot be verified.")
    # A table that took the place of another one has versions of its own. One that was replaced under the same log goes
    # on, and has no snapshot.
    scope = f"{TABLE_ID} = '{_table_id(record)}'"
    if _last(connection, table, f"{scope} AND {complete} AND {_SNAPSHOT}") < 0:
        scope = "1 = 1"
    begin = max(_last(connection, table, f"{scope} AND {complete} AND {each}") for each in (_SNAPSHOT, _LOSS))
    rows = (
        f"{scope} AND {complete} AND (({COMMIT_VERSION} > {begin} AND {TASK} < {SNAPSHOT_TASKS}) "
        f"OR ({COMMIT_VERSION} = {begin} AND {_SNAPSHOT}))"
    )
    inserted, deleted = (", ".join(f"'{each}'" for each in kinds) for kinds in (_INSERTS, _DELETES))
    return Fold(f"{rows} AND {CHANGE_TYPE} IN ({inserted})", f"{rows} AND {CHANGE_TYPE} IN ({deleted})")


def _last(connection: Connection, table: str, condition: str) -> int:
    """Return the last version with rows that fulfil a condition; -1: there are none."""
    ((found,),) = connection.query(f"SELECT max({COMMIT_VERSION}) FROM {table} WHERE {condition}")
    return -1 if found is None else int(found)


def _table_id(record: TableRecord) -> str:
    return record.app_id.rpartition("/")[2].replace("'", "''")
