"""The option `on_bad_value` of a stream: it mends rows before they are loaded, or makes dead letters of them."""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from tailer.metrics import BAD_VALUES
from tailer.plan import Position
from tailer.sink import pipeline_of
from tailer_sinks.encoding.values import escape
from tailer_sinks.mirrors import CONTRADICTED
from tailer_sinks.sql.append import LOG_KEY
from tailer_sinks.sql.bad_values.dead_letters import DeadLetters, with_letters
from tailer_sinks.sql.bad_values.faults import (
    NO_JSON,
    NOT_UTF8,
    REMEDY,
    TOO_LARGE,
    Fault,
    key_faults,
    text_faults,
    value_faults,
)
from tailer_sinks.sql.databases.dialect import Connection, Dialect, UniqueViolationError
from tailer_sinks.sql.databases.existing import ExistingTable
from tailer_sinks.sql.databases.texts import TEXT, NoText, cast_or_kept, holds_json, json_texts
from tailer_sinks.sql.segments import Segment
from tailer_sinks.sql.target import Target

__all__ = ["BadValues", "OnBadValue", "Place"]

_log = logging.getLogger(__name__)

OnBadValue = Literal["stop", "null", "replace", "dead_letter"]

_OWN: Final = (COMMIT_VERSION, CHANGE_TYPE, COMMIT_TIMESTAMP)  # of rows that wait for a mirror; a log has them, too
_LONGEST_KEY: Final = 1000  # characters of a key's text in the table of dead letters
_UNWRITTEN: Final = (NO_JSON, NOT_UTF8, TOO_LARGE)  # reasons why JSON has no value of a column


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table for rows that wait under `schema`, or are compared. `table`: its quoted name. `key`: of the target.

    `identity`: the columns that identify a row, if it has columns for letters, see `with_letters`.
    """

    connection: Connection
    table: str
    schema: pa.Schema
    key: Sequence[str] = ()
    identity: Sequence[str] = ()


class BadValues:
    """The policy of the stream `app_id` of the sink called `name`, whose table is called `table`.

    `has_letters`: whether there may be dead letters of rows that the source has. `uses_letters`: whether rows that wait
    have columns for them. `existing`: the table, if a user made it.
    """

    def __init__(self, name: str, policy: OnBadValue, dialect: Dialect, table: str, app_id: str) -> None:
        self.letters = DeadLetters(dialect, table)
        self.has_letters = False
        self.uses_letters = policy == "dead_letter"
        self.existing: ExistingTable | None = None
        self._name = name
        self._policy = policy
        self._holds = dialect.holds
        self._table = table
        self._pipeline = pipeline_of(app_id)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._asked = False

    @property
    def makes_letters(self) -> bool:
        """Return whether rows become dead letters."""
        return self._policy == "dead_letter"

    def begin(self) -> None:
        """Begin a transaction."""
        self._counts.clear()
        self.uses_letters = self.makes_letters

    def look(self, connection: Connection, stored: Sequence[str]) -> None:
        """Look for letters. `stored`: tables with rows that wait, and may have letters."""
        self.uses_letters = self.makes_letters or bool(stored)
        # Without the policy, letters of a former one can only go.
        if self.makes_letters or self.has_letters or stored or not self._asked:
            waits = any(self.letters.wait_in(connection, table) for table in stored)
            self.has_letters = self.letters.exist(connection) or waits
            self._asked = True

    def refusal(self) -> SinkRejected | None:
        """Return why a mirror cannot go on: it has letters that nobody would end."""
        if self.makes_letters or not self.has_letters:
            return None
        remedy = 'Set it to "dead_letter" again, or run `tailer resnapshot PIPELINE`.'
        return SinkRejected(self._name, f"{self._table} has dead letters, and on_bad_value is another one now", remedy)

    def _contradiction(self, key: Sequence[str]) -> SinkRejected:
        """Return the error for a key that two rows have, or that has a dead letter already."""
        if not key:
            remedy = "Delete them, or set the progress after them with `tailer progress reset PIPELINE --to VERSION`."
            return SinkRejected(self._name, f"there are dead letters of these rows of {self._table} already", remedy)
        reason = f"rows are inserted whose key {self._table} or its dead letters have; the key is {', '.join(key)}"
        return SinkRejected(self._name, reason, CONTRADICTED)

    def make_room(self, connection: Connection, segments: Sequence[Segment]) -> None:
        """Let tables of rows that wait have letters, which were made under another policy. In the open transaction."""
        for segment in segments:
            if segment.stored is not None and segment.letters and not segment.stored_letters:
                self.letters.add_columns(connection, segment.stored)

    def merge(self, connection: Connection, target: Target, waiting: str | None, segment: Segment) -> None:
        """Bring the rows of a segment into the table, and its dead letters into theirs, in the open transaction."""
        if segment.rows.replace:
            self.letters.clear(connection)
        if waiting is None:
            return
        others, key = waiting, segment.key
        if segment.letters:
            try:
                has_times = COMMIT_TIMESTAMP in segment.staging.names
                others = self.letters.take(connection, waiting, is_mirror=bool(key), has_times=has_times)
            except UniqueViolationError as error:
                raise self._contradiction(key) from error
        target.merge(connection, others, segment.staging, segment.rows)
        if key and others != waiting and self.letters.have_rows(connection, waiting, key, target.rows_now):
            raise self._contradiction(key)

    def load_waiting(self, connection: Connection, table: str, rows: pa.RecordBatch, segment: Segment) -> None:
        """Load rows of a segment, which wait."""
        identity = (segment.key or LOG_KEY) if segment.letters else ()
        place = Place(connection=connection, table=table, schema=segment.staging, key=segment.key, identity=identity)
        self.load(place, rows)

    def load(self, place: Place, rows: pa.RecordBatch) -> None:
        """Load rows that wait, mended by the policy. Raises `SinkRejected`."""
        if faults := self._tried(place, rows):
            self._count(rows, faults)
            if self.makes_letters and place.identity:
                self._insert(place, rows, faults)
            else:
                self._insert(place, self._mended(rows, faults, place.key))

    def load_compared(self, place: Place, rows: pa.RecordBatch) -> None:
        """Load rows of the source as the table should have them: without those of dead letters."""
        if not self.makes_letters:
            self.load(place, rows)
        elif faults := self._tried(place, rows):
            self._insert(place, rows.filter(pc.invert(_any(faults, len(rows)))))

    def _tried(self, place: Place, rows: pa.RecordBatch) -> list[Fault]:
        """Load rows if all of their values fit, and return what does not. Raises `SinkRejected`.

        The table would refuse long keys and texts later, and not the rows that wait.
        """
        faults = [] if self.existing is None else list(text_faults(self.existing, rows))
        if faults and self._policy == "stop":
            raise self._stop(rows, faults[0])
        if self._policy != "stop":
            faults = [*key_faults(self._holds, rows, place.key), *faults]
        if faults:
            return [*value_faults(self._holds, rows, place.schema), *faults]
        try:
            self._insert(place, rows)
        except SinkRejected:
            faults = [] if self._policy == "stop" else list(value_faults(self._holds, rows, place.schema))
            if not faults:
                raise
        return faults

    def _insert(self, place: Place, rows: pa.RecordBatch, faults: Sequence[Fault] = ()) -> None:
        schema = place.schema
        if place.identity:
            rows, schema = self._with_letters(place, rows, faults), with_letters(schema)
        columns = list(map(cast_or_kept, rows.columns, schema.types))
        for field, column in zip(schema, columns, strict=True):
            if column.type != field.type and not holds_json(field.type):
                reason = f"column {field.name} of {self._table} has a value beyond those of {field.type}"
                raise SinkRejected(self._name, reason, REMEDY)
        place.connection.load(place.table, pa.record_batch(columns, schema.names))

    def committed(self, position: Position) -> None:
        """Count and log what the transaction has done."""
        for (column, reason), count in self._counts.items():
            BAD_VALUES.add((self._pipeline, column, reason), count)
            number = f"{count} value{'s' * (count > 1)}"
            text = '%s: column %s of %s %s: %s up to version %d, on_bad_value = "%s"'
            _log.warning(text, self._name, column, self._table, reason, number, position.version, self._policy)
        self._counts.clear()

    def _count(self, rows: pa.RecordBatch, faults: Sequence[Fault]) -> None:
        """Count values of rows that are inserted, or logged: a delete repeats its key."""
        changes = rows.column(CHANGE_TYPE) if CHANGE_TYPE in rows.schema.names else None
        for fault in faults:
            chosen = fault.rows
            if changes is not None and pa.types.is_integer(changes.type):
                chosen = pc.and_(chosen, pc.equal(changes, 1))
            if count := pc.sum(chosen).as_py():
                self._counts[fault.column, fault.reason] += count

    def _mended(self, rows: pa.RecordBatch, faults: Sequence[Fault], key: Sequence[str]) -> pa.RecordBatch:
        """Return rows with values that fit. Raises `SinkRejected` where there are none."""
        for fault in faults:
            index = rows.schema.get_field_index(fault.column)
            column = rows.column(index)
            if self._policy == "replace" and fault.replace is not None:
                column = fault.replace(column)
            elif self._policy == "replace":
                raise self._stop(rows, fault, ", and nothing can take its place")
            elif fault.column in key:
                raise self._stop(rows, fault, ", and a column of the key cannot be null")
            else:
                column = _nulled(column, fault.rows)
            rows = rows.set_column(index, fault.column, column)
        return rows

    def _stop(self, rows: pa.RecordBatch, fault: Fault, because: str = "") -> SinkRejected:
        place = ""
        if COMMIT_VERSION in rows.schema.names:
            place = f" in version {rows.column(COMMIT_VERSION).filter(fault.rows)[0].as_py()}"
        reason = f"column {fault.column} of {self._table} {fault.reason}{place}, which the database cannot hold"
        return SinkRejected(self._name, reason + because, fault.remedy)

    def _with_letters(self, place: Place, rows: pa.RecordBatch, faults: Sequence[Fault]) -> pa.RecordBatch:
        """Return rows with the columns for letters. Rows with a fault have only what leads to their letter."""
        all_columns, none = with_letters(rows.schema), pa.nulls(len(rows), pa.string())
        is_keyed = bool(place.key) and self.has_letters
        if not faults:
            keys = _key_texts(rows, place) if is_keyed else none
            return pa.record_batch([*rows.columns, keys, none, none, none], schema=all_columns)
        self.has_letters = self.has_letters or bool(place.key)
        bad = _any(faults, len(rows))
        bad_keys = _any([fault for fault in faults if fault.column in place.key], len(rows))
        lettered = bad if not place.key else pc.and_(bad, pc.equal(rows.column(CHANGE_TYPE), 1))
        columns = [
            column if name in _OWN else _nulled(column, bad_keys if name in place.key else bad)
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        # Before the first letter of a mirror, no key needs a text; in its own batch, each does.
        keys = _key_texts(rows, place)
        keys = keys if place.key else _only(keys, bad)
        names, reasons = _described(faults, len(rows))
        texts = _row_texts(rows, faults, lettered, is_mirror=bool(place.key))
        letters = [_only(column, lettered) for column in (names, reasons, texts)]
        return pa.record_batch([*columns, keys, *letters], schema=all_columns)


def _any(faults: Sequence[Fault], count: int) -> pa.Array:
    rows = pa.repeat(pa.scalar(False), count)
    for fault in faults:
        rows = pc.or_(rows, fault.rows)
    return rows


def _nulled(column: pa.Array, rows: pa.Array) -> pa.Array:
    """Return a column of any type with null in these rows."""
    places = pa.array(range(len(column)), pa.int64())
    return column.take(_only(places, pc.invert(rows)))


def _only(column: pa.Array, rows: pa.Array) -> pa.Array:
    return pc.if_else(rows, column, pa.scalar(None, column.type))


def _described(faults: Sequence[Fault], count: int) -> tuple[pa.Array, pa.Array]:
    """Return the columns that do not fit, and why, for each row."""
    names: list[dict[str, None]] = [{} for _ in range(count)]
    reasons: list[dict[str, None]] = [{} for _ in range(count)]
    for fault in faults:
        for row in pc.indices_nonzero(fault.rows).to_pylist():
            names[row][fault.column] = None
            reasons[row][fault.reason] = None
    return pa.array([", ".join(row) for row in names]), pa.array(["; ".join(row) for row in reasons])


def _row_texts(rows: pa.RecordBatch, faults: Sequence[Fault], chosen: pa.Array, *, is_mirror: bool) -> pa.Array:
    """Return the rows that are `chosen` as JSON, with null for values that it cannot have."""
    rows = rows.select([name for name in rows.schema.names if not (is_mirror and name in _OWN)])
    for fault in faults:
        if fault.reason in _UNWRITTEN:
            index = rows.schema.get_field_index(fault.column)
            rows = rows.set_column(index, fault.column, _nulled(rows.column(index), fault.rows))
    whole = rows.filter(chosen).to_struct_array()
    texts = iter(json_texts(whole.type)(whole).to_pylist())
    return pa.array([next(texts) if is_chosen else None for is_chosen in chosen.to_pylist()], pa.string())


def _key_texts(rows: pa.RecordBatch, place: Place) -> pa.Array:
    """Return the values that identify each row as a JSON array; of a long one, its hash."""
    columns = [_key_text(rows.column(name), place.schema.field(name).type) for name in place.identity]
    joined = pc.binary_join_element_wise(*columns, pa.scalar(",", TEXT))
    texts = pc.binary_join_element_wise(pa.scalar("[", TEXT), joined, pa.scalar("]", TEXT), pa.scalar("", TEXT))
    if pc.any(is_long := pc.greater(pc.utf8_length(texts), _LONGEST_KEY)).as_py():
        hashes = [f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" for text in texts.filter(is_long).to_pylist()]
        texts = pc.replace_with_mask(texts, is_long, pa.array(hashes, TEXT))
    return texts.cast(pa.string())


def _key_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type != kind:  # one value is beyond those of the type; all others are as in every batch
        values = [cast_or_kept(column.slice(row, 1), kind) for row in range(len(column))]
        return pa.concat_arrays([json_texts(value.type)(value) for value in values])
    try:
        return json_texts(column.type)(column)
    except NoText:  # of a text that is not UTF-8; all others are as in every batch
        texts = [value.decode(errors="surrogateescape") for value in column.cast(pa.large_binary()).to_pylist()]
        has_surrogate = re.compile("[\ud800-\udfff]").search
        return pa.array([json.dumps(text) if has_surrogate(text) else escape(text) for text in texts], TEXT)
