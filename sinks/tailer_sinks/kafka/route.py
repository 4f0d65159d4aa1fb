"""The rule that gives each row a topic: `topic = "shop.{country}"`, with the topics that may exist.

Values are looked at once for each distinct one of a batch. They may be secret, so no error shows one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS, ChangeBatch, is_struct, type_text

__all__ = ["Column", "Route", "column_in", "is_topic", "route_faults"]

TABLE: Final = "table"
_PLACEHOLDER: Final = re.compile(r"\{([^{}]+)\}")
_TEXT: Final = pa.large_string()
_OUTSIDE: Final = -1
MOST_KNOWN: Final = 4096  # values whose topics are remembered
_ADDED: Final = frozenset(field.name for field in METADATA_FIELDS)
_PLAIN_TYPES: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date,
)

Fault = tuple[str, str, str]  # option, reason, next step


def is_topic(topic: str) -> bool:
    """Return whether brokers accept the name of a topic."""
    allowed = all(char.isascii() and (char.isalnum() or char in "._-") for char in topic)
    return allowed and 0 < len(topic) <= 249 and topic not in {".", ".."}


@dataclass(frozen=True)
class Route:
    """Topics named `before`, the value of `column`, and `after`.

    `column`: a column of the table, or the path of a field in structs, such as `address.country`. `topics`: the topics
    that may exist, or a pattern that their whole names match. `other`: the topic for all other rows; None: they are
    refused.
    """

    before: str
    column: str
    after: str
    topics: frozenset[str] | re.Pattern[str]
    other: str | None = None
    _known: dict[str | None, str | None] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, topic: str, topics: Sequence[str] | str, other: str | None) -> "Route | None":
        """Return the route of these options, which `route_faults` found to be sound; None: `topic` has no column."""
        before, *rest = _PLACEHOLDER.split(topic)
        if len(rest) != 2:
            return None
        allowed = re.compile(topics) if isinstance(topics, str) else frozenset(topics)
        return cls(before, rest[0], rest[1], allowed, other)

    @property
    def listed(self) -> list[str]:
        """The topics that are known without any row."""
        listed = [] if isinstance(self.topics, re.Pattern) else sorted(self.topics)
        return listed if self.other is None else [*listed, self.other]

    def reaches(self, topic: str) -> bool:
        """Return whether rows may go to the topic."""
        return topic == self.other or self.names(topic)

    def names(self, topic: str) -> bool:
        """Return whether a value of the column may name the topic."""
        value = topic.removeprefix(self.before).removesuffix(self.after)
        return bool(value) and topic == f"{self.before}{value}{self.after}" and self._is_allowed(topic)

    def topic_of(self, value: str | None) -> str | None:
        """Return the topic of rows with this value, as text; None: they are refused."""
        if value not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            topic = f"{self.before}{value}{self.after}"
            fits = value is not None and is_topic(topic) and self._is_allowed(topic)
            self._known[value] = topic if fits else self.other
        return self._known[value]

    def divide(self, sink: str, column: "Column", batch: ChangeBatch) -> tuple[list[str], pa.Array | None]:
        """Return the topics of rows, and for each row the number of its topic; None if there is one topic.

        Raises `SinkRejected` for a row without a topic; `sink`: the sink's name in it.
        """
        if (only := column.constant(batch.rows)) is not None and (topic := self.topic_of(only)) is not None:
            return [topic], None
        values, indices = column.distinct(batch.rows)
        topics: dict[str, int] = {}
        numbers = []
        for value in [*values, None]:
            named = self.topic_of(value)
            numbers.append(_OUTSIDE if named is None else topics.setdefault(named, len(topics)))
        table = pa.array(numbers, pa.int32())
        of_rows = table.take(pc.fill_null(indices, pa.scalar(len(values), indices.type)))
        if (row := pc.index(of_rows, pa.scalar(_OUTSIDE, pa.int32())).as_py()) >= 0:
            place = f"version {batch.version}, task {batch.task}, row {batch.row_index[row].as_py()}"
            has_value = indices[row].is_valid
            what = "has a value (not shown here) that names no topic of topics" if has_value else "is null"
            reason = f"column {self.column}, which names the topic, {what} ({place})"
            raise SinkRejected(sink, reason, "Add the topic to topics, or give other_topic for such rows.")
        used, names = pc.unique(of_rows), list(topics)  # without those of null, and of values that no row has
        return [names[number] for number in used.to_pylist()], None if len(used) == 1 else pc.index_in(of_rows, used)

    def _is_allowed(self, topic: str) -> bool:
        if isinstance(self.topics, re.Pattern):
            return self.topics.fullmatch(topic) is not None
        return topic in self.topics


@dataclass(frozen=True, slots=True)
class Column:
    """The column that a route names, by its place in the schema of rows: of the column, and of fields in structs."""

    place: tuple[int, ...]

    def constant(self, rows: pa.RecordBatch) -> str | None:
        """Return the only value of rows as text; None if there are several, or it is null or not UTF-8."""
        column = self._values(rows)
        if len(column) == 0 or column.null_count or pa.types.is_dictionary(column.type):
            return None
        first = column[0]
        if column[-1] != first or not pc.all(pc.equal(column, first)).as_py():
            return None
        return _texts(column.slice(0, 1))[0]

    def distinct(self, rows: pa.RecordBatch) -> tuple[list[str | None], pa.Array]:
        """Return the distinct values of rows as text (None: not UTF-8), and for each row the number of its value."""
        column = self._values(rows)
        if not pa.types.is_dictionary(column.type):
            plain = column.cast(_TEXT) if pa.types.is_string_view(column.type) else column
            column = plain.dictionary_encode()
        return _texts(column.dictionary), column.indices

    def _values(self, rows: pa.RecordBatch) -> pa.Array:
        column = rows.column(self.place[0])
        return pc.struct_field(column, list(self.place[1:])) if len(self.place) > 1 else column


def column_in(sink: str, route: Route, schema: pa.Schema) -> Column:
    """Find the column of a route in the schema of rows. Raises `SinkRejected` if it cannot name topics."""
    name = route.column
    by_name = [place] if (place := _place_of(schema, [name])) is not None else []
    if "." in name and (place := _place_of(schema, name.split("."))) is not None:
        by_name.append(place)
    if len(by_name) > 1:
        reason = f"{name}, which names the topic, is both a column and a field of the column {name.split('.')[0]}"
        raise SinkRejected(sink, reason, "Rename the column in the table.")
    if not by_name or name in _ADDED:
        reason = f"the rows have no column {name}, which names the topic"
        raise SinkRejected(sink, reason, "Name a column of the table in topic, and leave it among columns.")
    first, *rest = by_name[0]
    kind = schema.field(first).type
    for index in rest:
        kind = kind.field(index).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(applies(plain) for applies in _PLAIN_TYPES):
        reason = f"column {name}, which names the topic, has type {type_text(kind)}"
        raise SinkRejected(sink, reason, "Name a column of text, integers, booleans or dates in topic.")
    return Column(by_name[0])


def route_faults(topic: str, topics: Sequence[str] | str | None, other: str | None) -> Iterator[Fault]:
    """Yield the faults of the options of a route, without those in names of topics that have no column."""
    columns = _PLACEHOLDER.findall(topic)
    if not columns:
        for option, value in (("topics", topics), ("other_topic", other)):
            if value is not None:
                remedy = 'Name a column in topic, such as topic = "shop.{country}", or leave it out.'
                yield option, "goes with a topic that is named by a column", remedy
        return
    if len(columns) > 1:
        yield "topic", f"names {len(columns)} columns: {', '.join(columns)}", "Name one column."
    elif columns[0] == TABLE:
        reason = "has {table}, which is the name of the table where one pipeline stands for many, never a column"
        yield "topic", reason, "Rename the column in the table, or give table a pattern such as lake/*."
    elif topics is None or not topics:
        remedy = 'List the topics that may exist, topics = ["shop.de", "shop.fr"], or give a pattern of their names.'
        yield "topics", f"is missing: topic is named by the column {columns[0]}", remedy
    else:
        yield from _topics_faults(topic, topics, other)


def _topics_faults(topic: str, topics: Sequence[str] | str, other: str | None) -> Iterator[Fault]:
    """Yield the faults of the topics that may exist."""
    if isinstance(topics, str):
        try:
            re.compile(topics)
        except re.error as error:
            yield "topics", f"is not a regular expression: {error}", 'Write it like "shop\\\\.[a-z]{2}".'
            return
    route = Route.of(topic, topics, other)
    assert route is not None, "topic names a column"
    if not isinstance(topics, str):
        for listed in topics:
            if not is_topic(listed):
                remedy = "Use up to 249 letters, digits, '.', '_' and '-'."
                yield "topics", f"{listed!r} is not a valid topic name", remedy
            elif not route.names(listed):
                remedy = "Leave it out, or change topic."
                yield "topics", f"no value of column {route.column} makes {listed} of {topic}", remedy
    if other is not None and route.names(other):
        remedy = "Give other_topic a name that no value makes."
        yield "other_topic", f"{other} is among topics: its rows could not be told from others", remedy


def _place_of(schema: pa.Schema, path: Sequence[str]) -> tuple[int, ...] | None:
    """Return the place of a column, or of a field in structs; None if there is none."""
    place: list[int] = []
    fields: Sequence[pa.Field] = list(schema)
    for depth, name in enumerate(path):
        place_in = next((index for index, field in enumerate(fields) if field.name == name), None)
        if place_in is None or (depth + 1 < len(path) and not is_struct(fields[place_in].type)):
            return None
        place.append(place_in)
        fields = list(fields[place_in].type) if is_struct(fields[place_in].type) else []
    return tuple(place)


def _texts(values: pa.Array) -> list[str | None]:
    """Return values as text; None for null, and where they are not UTF-8."""
    texts: list[str | None] = []
    for text in values.cast(_TEXT).cast(pa.large_binary()).to_pylist():
        try:
            texts.append(None if text is None else text.decode())
        except UnicodeDecodeError:
            texts.append(None)
    return texts
