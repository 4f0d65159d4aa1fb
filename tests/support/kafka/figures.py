"""The five figures of a stream in Kafka, which are always 0, computed from the records of a `read_committed` consumer.

`missing`: changes of the table that were not seen. `doubled`: positions seen twice, and rows that no version of the
table has. `disordered`: messages of a key that are not in the order of their positions, or in two partitions.
`unfolded`: rows that differ between the table, as delta-rs reads it, and all events applied to an empty one.
`miscounted`: versions without exactly one END record, in their order, with the right counts.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

import msgspec

from tests.support.kafka.history import LARGE_NOTE, TABLE_ID, History, NetChange, Row, RowChange, change_of, row_of
from tests.support.kafka.topics import Record
from tests.support.oracle.rows import delta_rs_snapshot

__all__ = ["Figures", "Part", "Read", "ends_of", "keyed_figures", "total", "unkeyed_figures"]

Position = tuple[int, int, int]  # version, task, row
_OPERATIONS: Final = {"c": (False, True), "u": (True, True), "d": (True, False)}  # has before, has after


@dataclass(frozen=True)
class Figures:
    """The figures; `examples`: some faults, for people."""

    missing: int
    doubled: int
    disordered: int
    unfolded: int
    miscounted: int
    examples: tuple[str, ...] = field(compare=False)

    @property
    def all_zero(self) -> bool:
        """Return whether all figures are 0."""
        return not any(astuple(self)[:5])


@dataclass(frozen=True)
class Read:
    """The records read from a stream's topics, each partition's in order."""

    events: Sequence[Record]
    ends: Sequence[Record]
    letters: Sequence[Record] = ()


@dataclass(frozen=True)
class Part:
    """The rows of a table that `own` does not make None, as `own` makes them, with the changes that lead to them."""

    whole: History
    own: Callable[[Row], Row | None]

    @property
    def published(self) -> int:
        """The number of published versions."""
        return self.whole.published

    def net_changes(self) -> Counter[NetChange]:
        """Return the changes of the published versions, key by key: a row that leaves the part is deleted."""
        parts = ((v, key, self._own(before), self._own(after)) for v, key, before, after in self.whole.net_changes())
        return Counter(change for change in parts if change[2:] != (None, None))

    def _own(self, row: Row | None) -> Row | None:
        return None if row is None else self.own(row)


def ends_of(topic: str, ends: Sequence[Record]) -> list[Record]:
    """Return END records with the counts of one of the topics, which add up to the whole."""
    found = []
    for record in ends:
        end = json.loads(record.value or b"")
        counts = {each["data_collection"]: each["event_count"] for each in end["data_collections"]}
        assert sum(counts.values()) == end["event_count"], end
        assert list(counts) == sorted(counts), end
        found.append(replace(record, value=json.dumps(end | {"event_count": counts.get(topic, 0)}).encode()))
    return found


def total(figures: Sequence[Figures]) -> Figures:
    """Return the sums of figures."""
    missing, doubled, disordered, unfolded, miscounted = (
        sum(numbers) for numbers in zip(*(astuple(each)[:5] for each in figures), strict=True)
    )
    examples = tuple(example for each in figures for example in each.examples)
    return Figures(missing, doubled, disordered, unfolded, miscounted, examples)


@dataclass(frozen=True)
class _Event:
    record: Record
    position: Position
    operation: str
    change: NetChange


def keyed_figures(history: History | Part, read: Read) -> Figures:
    """Compute the figures of Debezium's messages with the key `id`, and of dead letters for too large ones."""
    events = [_event(record) for record in read.events if record.value is not None]
    letters = [msgspec.json.decode(record.value or b"") for record in read.letters]
    seen = Counter(event.change for event in events)
    lettered = Counter(
        (each["commit_version"], _id_of(record)) for each, record in zip(letters, read.letters, strict=True)
    )
    wanted = history.net_changes()
    large = Counter({change: n for change, n in wanted.items() if _is_large(change)})
    wanted -= large
    large_keys = Counter(change[:2] for change in large.elements())
    positions = Counter((event.position, event.operation) for event in events)
    positions.update(((each["commit_version"], each["task"], each["row"]), "letter") for each in letters)
    again = Counter({position: n - 1 for position, n in positions.items() if n > 1})
    wrong = _order_faults(read.events, {record.key for record in read.letters})
    unfolded = _fold_faults(history, events, {change[1] for change in large})
    counts = Counter(event.position[0] for event in events)
    letter_counts = Counter(each["commit_version"] for each in letters)
    uncounted = _count_faults(history, read.ends, counts, letter_counts)
    missing = (wanted - seen) + (large_keys - lettered)
    doubled = (seen - wanted) + (lettered - large_keys) + again
    return _figures(missing, doubled, wrong, unfolded, uncounted)


def unkeyed_figures(history: History, read: Read) -> Figures:
    """Compute the figures of flat messages without keys: duplicates are found by values, as there are no positions."""
    changes = [(record.partition, _change(record)) for record in read.events]
    partitions = {record.partition for record in read.events}
    announced = history.announcements()
    # Each partition has the events about columns.
    events = Counter((partition, change) for partition, change in changes if change[1] == "schema_change")
    wanted_events = Counter((partition, change) for partition in partitions for change in announced)
    seen = Counter(change for _, change in changes if change[1] != "schema_change")
    wanted = history.changes()
    wrong = []
    reached: dict[int, int] = {}
    for record, (_, (version, _, _)) in zip(read.events, changes, strict=True):
        if version < reached.get(record.partition, 0):
            wrong.append(f"version {version} after {reached[record.partition]} in partition {record.partition}")
        reached[record.partition] = version
    folded: Counter[Row] = Counter()
    for (_, kind, row), n in seen.items():
        folded[row] += n if kind in {"insert", "update_postimage"} else -n
    table = Counter(_table(history).values())
    unfolded = [f"{row}" for row in folded.keys() | table.keys() if folded[row] != table[row]]
    counts = Counter(change[0] for change in seen.elements())
    uncounted = _count_faults(history, read.ends, counts, Counter())
    missing = (wanted - seen) + (wanted_events - events)
    doubled = (seen - wanted) + (events - wanted_events)
    return _figures(missing, doubled, wrong, unfolded, uncounted)


def _figures(
    missing: Counter[Any], doubled: Counter[Any], wrong: list[str], unfolded: list[str], uncounted: list[str]
) -> Figures:
    found = {
        "missing": sorted(map(str, missing.elements())),
        "doubled": sorted(map(str, doubled.elements())),
        "disordered": wrong,
        "unfolded": unfolded,
        "miscounted": uncounted,
    }
    examples = tuple(f"{name}: {each[:200]}" for name, faults in found.items() for each in faults[:3])
    return Figures(**{name: len(faults) for name, faults in found.items()}, examples=examples)


def _event(record: Record) -> _Event:
    value: dict[str, Any] = msgspec.json.decode(record.value or b"")
    source, operation, images = value["source"], value["op"], (value["before"], value["after"])
    version, task, row = map(int, json.loads(source["sequence"]))
    assert (source["table_id"], source["commit_version"], source["row_index"]) == (TABLE_ID, version, row), source
    assert tuple(image is not None for image in images) == _OPERATIONS[operation], value
    before, after = (None if image is None else row_of(_plain(image)) for image in images)
    return _Event(record, (version, task, row), operation, (version, _id_of(record), before, after))


def _change(record: Record) -> RowChange:
    return change_of(_plain(msgspec.json.decode(record.value or b"")))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of JSON with the text of a Variant in `note`, which holds two values."""
    note = values.get("note")
    if not isinstance(note, dict):
        return values
    assert note == {"n": values["n"], "note": note["note"]}, values
    return values | {"note": note["note"]}


def _id_of(record: Record) -> int:
    key: int = msgspec.json.decode(record.key or b"")["id"]
    return key


def _is_large(change: NetChange) -> bool:
    return any(row is not None and len(row[2]) >= LARGE_NOTE for row in change[2:])


def _order_faults(records: Sequence[Record], lettered: set[bytes | None]) -> list[str]:
    """Find keys in two partitions, positions that go back, deletes without a tombstone and tombstones without a delete.

    `lettered`: keys of which a delete may be a dead letter, so that its tombstone is alone.
    """
    faults = []
    places: dict[bytes | None, int] = {}
    reached: dict[bytes | None, Position] = {}
    deleted: dict[int, bytes | None] = {}
    for record in records:
        if places.setdefault(record.key, record.partition) != record.partition:
            faults.append(f"{record.key!r} is in partitions {places[record.key]} and {record.partition}")
        expected = deleted.pop(record.partition, None)
        if record.value is None:
            if expected != record.key and not (expected is None and record.key in lettered):
                faults.append(f"a tombstone of {record.key!r}, and not of {expected!r}")
            continue
        if expected is not None:
            faults.append(f"no tombstone after the delete of {expected!r}")
        event = _event(record)
        if event.position <= reached.get(record.key, (-1, 0, 0)):
            faults.append(f"{record.key!r}: {event.position} after {reached[record.key]}")
        reached[record.key] = event.position
        if event.operation == "d":
            deleted[record.partition] = record.key
    return faults + [f"no tombstone after the delete of {key!r}" for key in deleted.values()]


def _fold_faults(history: History | Part, events: Sequence[_Event], lettered: set[int]) -> list[str]:
    """Find rows that differ from the fold of the events; keys with a dead letter are not known from events alone."""
    folded: dict[int, Row] = {}
    faults = []
    for event in events:
        _, key, before, after = event.change
        if key in lettered:
            continue
        if folded.get(key) != before:
            faults.append(f"{event.position}: {before} was {folded.get(key)}")
        folded.pop(key, None)
        if after is not None:
            folded[key] = after
    table = {key: row for key, row in _table(history).items() if key not in lettered}
    keys = folded.keys() | table.keys()
    return faults + [f"{key}: {folded.get(key)}" for key in keys if folded.get(key) != table.get(key)]


def _table(history: History | Part) -> dict[int, Row]:
    """Return the table's rows, read by another reader; no other one reads shredded Variants."""
    if isinstance(history, Part):
        return {key: own for key, row in _table(history.whole).items() if (own := history.own(row)) is not None}
    if history.variants:
        return history.rows()
    rows: list[dict[str, Any]] = [
        dict(row) for row in delta_rs_snapshot(history.path, history.published - 1).elements()
    ]
    return {row["id"]: row_of(row) for row in rows}


def _count_faults(
    history: History | Part, ends: Sequence[Record], events: Counter[int], letters: Counter[int]
) -> list[str]:
    said = [msgspec.json.decode(record.value or b"") for record in ends]
    # Versions before the first one with rows may have no END: a stream begins with its first row.
    found = [(end["commit_version"], end["event_count"], end["dead_letters"]) for end in said]
    first = min((version for version, _, _ in found), default=0)
    wanted = [(version, events[version], letters[version]) for version in range(first, history.published)]
    faults = [f"{end} is not {other}" for end, other in _misfits(found, wanted)]
    return faults + [f"version {version} has no END" for version in events if version < first]


def _misfits(found: list[Any], wanted: list[Any]) -> Iterator[tuple[Any, Any]]:
    length = max(len(found), len(wanted))
    pad = [None] * length
    pairs = zip((found + pad)[:length], (wanted + pad)[:length], strict=True)
    return ((one, other) for one, other in pairs if one != other)
