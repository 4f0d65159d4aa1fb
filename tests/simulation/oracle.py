"""The judge of a run: the invariants of `docs/architecture.md`, at every transaction that becomes visible.

A destination reports each transaction at the moment when readers see it. The judge knows from the table's writer which
rows each version must bring, and accepts no other ones, none twice, none in another order, and no progress without its
rows. Rows of a version may come in several transactions; the version is judged as a whole once progress is behind it.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from tailer.errors import Retry, SinkRejected, TailerError
from tailer.plan import END, Position
from tailer.sink import is_layout
from tailer_sinks.files.port import PLACE, after_place
from tests.simulation.table import Facts, Row, SimulatedTable, row_of

__all__ = [
    "Announced",
    "Change",
    "Judge",
    "Transaction",
    "Violation",
    "Witness",
    "change_of",
    "check_error",
    "is_backfill",
    "read_file",
    "read_progress",
]

_DATA: Final = re.compile(r"(?P<app_id>.+)/[^/]+\.(?P<kind>jsonl|parquet)")
_REFUSED: Final = re.compile(r"the changes of versions? (\d+)(?: to (\d+))? insert (?:or delete )?a key")
_SIGNS: Final = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


class Violation(Exception):
    """An invariant does not hold. `number`: of the invariant; 0: liveness."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}" if number else f"liveness: {text}")
        self.number = number


@dataclass(frozen=True)
class Change:
    """A change row as a reader of the destination sees it. `of_snapshot`: it is one of all rows of its version."""

    kind: str
    version: int
    row: Row
    of_snapshot: bool = False


@dataclass(frozen=True)
class Announced:
    """A gap or a change of columns between rows."""

    kind: str
    version: int
    first: int = 0
    snapshot: bool = False


@dataclass(frozen=True)
class Transaction:
    """Rows and progress that become visible at once. `before`: where it says that it begins; None: it does not say."""

    app_id: str
    items: Sequence[Change | Announced]
    after: Position | None
    before: Position | None = None
    resets: bool = False


@dataclass
class Witness:
    """Facts of the run by which gaps, starts and errors are excused.

    `tables`: the current one last. `instances`: the number of processes that have begun.
    """

    tables: list[SimulatedTable]
    start: str
    ordered_snapshots: int = 0
    ordered_skips: int = 0
    instances: int = 0

    @property
    def table(self) -> SimulatedTable:
        """The current table."""
        return self.tables[-1]

    def contradicts(self, error: Exception) -> bool:
        """Return whether a mirror has refused versions of which one has a key twice."""
        named = _REFUSED.search(str(error))
        if named is None or not isinstance(error, SinkRejected):
            return False
        first, last = int(named[1]), int(named[2] or named[1])
        versions = range(first, last + 1)
        return any(
            each.has_key_twice(version) for each in self.tables for version in versions if version <= each.latest
        )

    def table_of(self, app_id: str) -> SimulatedTable:
        """Return the table that an app_id is about."""
        table_id = app_id.rpartition("/")[2]
        found = [each for each in self.tables if table_id in each.ids]
        if not found:
            raise Violation(5, f"{app_id} is about a table that never was")
        return found[-1]


@dataclass
class Judge:
    """The judge of one pipeline's stream. `repeats`: whether rows may come again (a sink without transactions).

    `apart`: whether rows of each table have a place of their own, so that a late transaction comes after no others.
    """

    witness: Witness
    repeats: bool = False
    apart: bool = False
    position: Position | None = None
    app_id: str = ""
    begun_with: dict[str, int] = field(default_factory=dict)  # by process: its last snapshot without transactions
    history: list[tuple[float, Position | None]] = field(default_factory=list)
    _next: int | None = None  # the version that is due
    _snapshot: int | None = None  # the version whose rows replace all others, while they come
    _open: dict[int, list[tuple[str, Row]]] = field(default_factory=dict)
    _copy: Counter[Row] = field(default_factory=Counter)
    _copied: int | None = None  # the version that the copy is at
    _plans: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    _rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    _positions: dict[str, Position] = field(default_factory=dict)
    _open_backfills: dict[str, list[tuple[str, Row]]] = field(default_factory=dict)
    _ended_backfills: dict[str, Position] = field(default_factory=dict)
    versions: int = 0
    backfills: int = 0

    def see(self, transaction: Transaction, now_s: float) -> None:
        """Judge a transaction that readers can see from now on. Raises `Violation`."""
        if is_backfill(transaction.app_id):
            self._see_backfill(transaction)
            return
        if self._says_nothing(transaction):
            return
        before, after = self._positions.get(transaction.app_id), transaction.after
        if transaction.before is not None and before is not None and transaction.before != before:
            number = 3 if transaction.before > before else 6
            raise Violation(
                number, f"a transaction begins after {transaction.before}, and the one before it ended at {before}"
            )
        may_go_back = transaction.resets or self.repeats
        if before is not None and (after is None or after < before) and not may_go_back:
            raise Violation(3, f"progress went from {before} back to {after}")
        if self.app_id and transaction.app_id != self.app_id:
            self._change_table(transaction)
        self.app_id = transaction.app_id
        self._begin(transaction)
        for item in transaction.items:
            if isinstance(item, Change):
                self._take_row(item, after)
            elif item.kind == "gap":
                self._take_gap(item)
        if after is not None:
            self._positions[transaction.app_id] = after
            self._reach(after)
        self.position = after
        self.history.append((now_s, after))

    def move(self, app_id: str, position: Position, now_s: float) -> None:
        """Note that a stream has moved, whose rows somebody else judges. Raises `Violation` if it went back."""
        before = self._positions.get(app_id)
        if before is not None and position < before:
            raise Violation(3, f"progress went from {before} back to {position}")
        self.versions += position.closes_version
        self._positions[app_id] = self.position = position
        self.app_id = app_id
        self.history.append((now_s, position))

    @property
    def is_unnamed(self) -> bool:
        """Return whether the log no longer names the table that was delivered last."""
        table_id = self.app_id.rpartition("/")[2]
        return len(self.witness.tables) > 1 or (table_id != "" and table_id not in self.witness.table.left_ids)

    def check_plan(self, table_id: str, version: int, timestamp_ms: int, plan: str) -> None:
        """Judge whether a version has the same plan as ever.

        Times of commits before make a timestamp monotonic; a log that was cleaned up does not have them.
        """
        known = self._plans.setdefault((table_id, version), (timestamp_ms, plan))
        is_dated = all(each >= version for each in self.witness.table_of(table_id).cleaned)
        if known[1] != plan or (is_dated and known[0] != timestamp_ms):
            raise Violation(4, f"version {version} has another plan than before:\n{known}\n{(timestamp_ms, plan)}")

    def check_row(self, place: tuple[Any, ...], row: Row) -> None:
        """Judge whether there is the same row as ever at a place, whoever reads it."""
        known = self._rows.setdefault(place, row)
        if known != row:
            raise Violation(4, f"row {place} is {row}, and was {known}")

    def check_resume(self, position: Position | None, since_s: float) -> None:
        """Judge whether a session goes on from what the destination said since it began (`since_s`)."""
        before = [at for when, at in self.history if when < since_s]
        true = {*(before[-1:] or [None]), *(at for when, at in self.history if when >= since_s)}
        if self.is_unnamed:
            true.add(None)  # nothing is delivered of a table that the log names
        if position not in true:
            raise Violation(2, f"a session goes on after {position}, and the destination said {true}")

    def _facts(self, version: int) -> Facts:
        table = self.witness.table_of(self.app_id)
        if version > table.latest:
            raise Violation(3, f"version {version} comes after the newest one, {table.latest}")
        return table.facts[version]

    def _begin(self, transaction: Transaction) -> None:
        """Find out where a stream begins."""
        if self._next is not None or transaction.after is None:
            return
        first = min((item.version for item in transaction.items if isinstance(item, Change)), default=None)
        gap = next((item for item in transaction.items if isinstance(item, Announced) and item.kind == "gap"), None)
        after, start = transaction.after, self.witness.start
        if gap is not None:
            self._next = gap.first
        elif start == "snapshot" or after.in_snapshot:
            seen = max((each for each in self.begun_with.values() if each <= after.version), default=first)
            self._next = self._snapshot = after.version if seen is None else seen
        elif start == "latest":
            if first is not None:
                raise Violation(1, "the first transaction of a start at the latest version has rows")
            self._next = after.version + 1
            self._copy_at(after.version)
        else:
            table = self.witness.table_of(self.app_id)
            # Where the log was cleaned up, changes begin around a checkpoint.
            starts = {0, *(each + more for each in table.checkpoints if table.cleaned for more in (0, 1))}
            begins = after.version + 1 if first is None else after.version if self.repeats else first
            self._next = max(each for each in starts if each <= begins)
            self._copy_at(self._next - 1)

    def _copy_at(self, version: int) -> None:
        facts = None if version < 0 else self._facts(version)
        self._copy, self._copied = Counter() if facts is None else Counter(facts.rows), version

    def _take_row(self, change: Change, after: Position | None) -> None:
        version, due = change.version, self._next
        if self.repeats:  # rows come again, and those of two processes among each other
            if due is None or version >= due:
                self._open.setdefault(version, []).append((change.kind, change.row))
            return
        if self._snapshot is not None and version != self._snapshot:
            self._end_snapshot()
            due = self._next
        if due is not None and version < due:
            raise Violation(3, f"a row of version {version} comes after that version: {change}")
        if due is not None and version > due:
            self._reach(Position.end(version - 1))
        self._open.setdefault(version, []).append((change.kind, change.row))

    def _take_gap(self, gap: Announced) -> None:
        table, due = self.witness.table_of(self.app_id), self._next
        if due is not None and self._snapshot is None and gap.first > due:
            self._reach(Position.end(gap.first - 1))
            due = self._next
        if due is not None and gap.first < due and not (self._snapshot == gap.first or self.repeats):
            raise Violation(3, f"a gap begins at version {gap.first}, and version {due} is due")
        lost = any(table.lost(version) for version in range(gap.first, gap.version + 2))
        ordered = self.witness.ordered_snapshots if gap.snapshot else self.witness.ordered_skips
        if not lost and not ordered and len(self.witness.tables) == 1:
            raise Violation(5, f"versions {gap.first} to {gap.version} are left out, and none of them is lost")
        self._copied = None
        if self.repeats:  # one that comes late does not say where its rows are; what follows is judged again
            self._snapshot, self._next = None, max(due or 0, gap.version + 1)
            return
        self._open.clear()
        self._snapshot = gap.version if gap.snapshot else None
        self._next = gap.version if gap.snapshot else gap.version + 1

    def _change_table(self, transaction: Transaction) -> None:
        """Go on with the stream under another id of the table, or with another table."""
        gaps = [item for item in transaction.items if isinstance(item, Announced) and item.kind == "gap"]
        is_other = self.witness.table_of(self.app_id) is not self.witness.table_of(transaction.app_id)
        # Where the log was cleaned up behind a REPLACE, nothing tells the former id from that of another table.
        if is_other or (self.is_unnamed and any(gap.snapshot and gap.first == 0 for gap in gaps)):
            if not gaps and not self._may_begin_twice():
                raise Violation(3, "another table takes the place of this one, without a gap")
            self._next, self._snapshot = None, None
            self._open.clear()
            self._copied = None

    def _says_nothing(self, transaction: Transaction) -> bool:
        """Return whether a transaction is a claim, is of a layout, or comes to a place that is out of use."""
        if (transaction.after is None and not transaction.items) or is_layout(transaction.app_id):
            return True
        if not (self.apart and self.app_id):
            return False
        tables = self.witness.tables
        now = tables.index(self.witness.table_of(self.app_id))
        return tables.index(self.witness.table_of(transaction.app_id)) < now

    def _may_begin_twice(self) -> bool:
        """Return whether two instances may each have begun the pipeline, with one table each.

        What a destination has of a pipeline is looked up before the first transaction, whose app_id nobody else uses.
        So if nothing was delivered yet when the table was created anew, neither instance can know of the other one.
        """
        return self.witness.instances > 1 and self.history[0][0] >= self.witness.table.at_s[0]

    def _reach(self, position: Position) -> None:
        """Note that everything up to `position` is visible: judge each version that it closes."""
        if self._snapshot is not None:
            if not position.closes_version or position.version < self._snapshot:
                return
            self._end_snapshot()
        done = position.version if position.closes_version else position.version - 1
        while self._next is not None and self._next <= done:
            self._close(self._next)
            self._next += 1

    def _end_snapshot(self) -> None:
        version = self._snapshot
        assert version is not None
        self._snapshot = None
        found = self._open.pop(version, [])
        wanted: Counter[tuple[str, Row]] = Counter()
        for row, number in self._facts(version).rows.items():
            wanted["insert", row] = number
        self._compare(f"the snapshot of version {version}", found, wanted)
        self._next = version + 1
        self._copy_at(version)

    def _close(self, version: int) -> None:
        """Judge all rows of a version."""
        facts, found = self._facts(version), self._open.pop(version, [])
        if facts.events is None:
            raise Violation(5, f"version {version} ({facts.kind}) counts as delivered, and nobody can read it")
        self._compare(f"version {version} ({facts.kind})", found, facts.events)
        self.versions += 1
        if self._copied == version - 1:
            for kind, row in dict.fromkeys(found) if self.repeats else found:
                self._copy[row] += _SIGNS[kind]
            if +self._copy != facts.rows or any(number < 0 for number in self._copy.values()):
                raise Violation(8, f"the changes up to version {version} do not give its rows")
            self._copy, self._copied = +self._copy, version

    def _compare(self, what: str, found: list[tuple[str, Row]], wanted: Counter[tuple[str, Row]]) -> None:
        there = Counter(dict.fromkeys(found, 1)) if self.repeats else Counter(found)
        if missing := wanted - there:
            raise Violation(1, f"{what} lacks {list(missing.items())[:3]}, and progress is behind it")
        if more := there - wanted:
            twice = all(wanted[each] for each in more)
            raise Violation(3 if twice else 8, f"{what} has {list(more.items())[:3]} {'twice' if twice else 'besides'}")

    def _see_backfill(self, transaction: Transaction) -> None:
        """Judge rows of a backfill, which are a stream of their own: all rows of one version, each once.

        An instance that takes over a stream that has ended says again where it ended.
        """
        rows = self._open_backfills.setdefault(transaction.app_id, [])
        changes = [item for item in transaction.items if isinstance(item, Change)]
        ended = self._ended_backfills.get(transaction.app_id)
        if ended is not None and not self.repeats and (transaction.items or transaction.after != ended):
            raise Violation(3, f"a backfill that ended at {ended} goes on to {transaction.after}: {changes[:3]}")
        if ended is not None and not changes:
            return
        rows += [(change.kind, change.row) for change in changes]
        after = transaction.after
        if after is not None and after.closes_version:
            wanted: Counter[tuple[str, Row]] = Counter()
            facts = self.witness.table_of(transaction.app_id).facts[after.version]
            for row, number in facts.rows.items():
                wanted["insert", row] = number
            self._compare(f"the backfill of version {after.version}", rows, wanted)
            self.backfills += 1
            self._ended_backfills[transaction.app_id] = after
            rows.clear()


def is_backfill(app_id: str) -> bool:
    """Return whether an app_id is one of a backfill."""
    return "/~backfill-" in app_id


def change_of(values: dict[str, Any]) -> Change | Announced:
    """Return what a line of JSON says."""
    kind, version = values["_change_type"], int(values["_commit_version"])
    if kind == "gap":
        return Announced(kind, version, values["first_version"], values["snapshot"])
    if kind == "schema_change":
        return Announced(kind, version)
    return Change(kind, version, row_of(values))


def read_file(key: str, data: bytes, attributes: Mapping[str, str]) -> Transaction | None:
    """Read an object of the `files` sink as one transaction; None: it is no file of rows."""
    found = _DATA.fullmatch(key)
    if found is None:
        return None
    app_id = "/".join(map(unquote, found["app_id"].split("/")))
    ends = [re.fullmatch(PLACE, attributes.get(f"lake-tailer-{name}", "")) for name in ("begin", "next")]
    before, after = (None if each is None else after_place(*each.groups()) for each in ends)
    items = [change_of(json.loads(line)) for line in data.decode().splitlines()]
    resets = attributes.get("lake-tailer-reset") == "true"
    return Transaction(app_id, items, after, before, resets)


def read_progress(data: bytes) -> dict[str, Position]:
    """Read the progress that a commit of the state table records, by app_id."""
    txns = {}
    for line in data.decode().splitlines():
        if (txn := json.loads(line).get("txn")) is not None:
            txns[txn["appId"]] = txn["version"]
    found = {}
    for app_id, version in txns.items():
        if "#" not in app_id:
            task, row = txns.get(f"{app_id}#task", END), txns.get(f"{app_id}#row", END)
            found[app_id] = Position.end(version) if task == END else Position(version + 1, task, row)
    return found


_LEAST_TRIED_S: Final = 300.0  # half of what a pipeline retries without success
_REQUESTS: Final = frozenset(["refuse", "lose", "slow", "hold", "tear", "miss", "crash"])
_EXCUSES: Final = {
    "SinkFenced": frozenset(["rival", "crash", "hold", "lose", "stop"]),
    "VersionGone": frozenset(["clean", "recreate", "garbage"]),
    "LogCorrupt": frozenset(["garbage"]),
    "UnsupportedFeature": frozenset(["feature"]),
    "FileVacuumed": frozenset(["vacuum", "recreate", "miss", "clean"]),
    "ChangesUnavailable": frozenset(["clean", "vacuum", "garbage", "resnapshot", "recreate", "stale"]),
    "TableReplaced": frozenset(["recreate", "unnamed"]),
    "NotATable": frozenset(["recreate"]),
    "VersionAhead": frozenset(["recreate", "stale"]),
    "LogRewritten": frozenset(["recreate"]),
    "StateUnknown": frozenset(["clean", "garbage"]),
    "SinkRejected": frozenset(["key twice"]),  # a mirror of a version that has a key twice
    "StorageUnavailable": _REQUESTS,
    "SinkUnavailable": _REQUESTS,
    "CommitUnknown": _REQUESTS,
}


def check_error(error: Exception, happened: set[str], tried_s: float) -> None:
    """Raise `Violation` unless something that `happened` is a reason for an error that stopped a pipeline.

    `tried_s`: for how long it had run; one that may pass stops it only after many attempts.
    """
    name = type(error).__name__
    if not isinstance(error, TailerError):
        raise Violation(5, f"a pipeline stopped with an error without a name: {error!r}")
    if not happened & _EXCUSES.get(name, frozenset()):
        raise Violation(0, f"a pipeline stopped with {name}, for which there is no reason: {error}")
    if error.retry in (Retry.TIMED, Retry.ASK) and tried_s < _LEAST_TRIED_S:
        raise Violation(0, f"a pipeline gave up after {tried_s:.0f} s: {error}")
