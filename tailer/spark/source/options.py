"""The options of the data source `tailer`, from the text that Spark hands over to checked values. No I/O, no pyspark.

docs/spark.md lists them. A place to read from is a version, or a time such as `2026-03-01T12:00:00Z` or
`2026-03-01 12:00:00.5`, UTC where it has no zone. Names of options and columns are found without regard to case, as
everywhere in Spark.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from tailer.changelog.rules import PairingRules
from tailer.config.options import faults_of, from_texts, option_names
from tailer.config.shapes import RangeOptions
from tailer.config.tables import TableRef, open_files
from tailer.errors import ConfigError, did_you_mean
from tailer.events import METADATA_FIELDS
from tailer.read.data_files import DataFiles
from tailer.schema.variant_paths import split_path
from tailer.spark.source.admission import Budget
from tailer.spark.source.locations import Locations, location_of, roots_of, spell, stores_of
from tailer.start import Start, StartKind
from tailer.stores.stores import Stores
from tailer.table_log import TableLog

__all__ = ["SourceOptions", "read_options"]

S = TypeVar("S", bound=msgspec.Struct)

DEFAULT_MAX_FILES: Final = 1000

_SIZE: Final = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE | re.ASCII)
_NAME: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]*[^`,\s]))\s*(?:,|$)")
_TAG: Final = "tag:"  # the names of tags are the only words whose case counts
_A_START: Final = "Give startingVersion, startingTimestamp or snapshot = true."

Count = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1, description="a whole number above 0", examples=[1000])]
AppId = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A[A-Za-z0-9_.-]+\Z",
        description="a name of letters, digits, '_', '.' and '-'",
        examples=["orders"],
    ),
]


class _Given(Locations, frozen=True, kw_only=True):
    """The options that are not those of reading, as they are written."""

    starting_version: str | None = None
    starting_timestamp: str | None = None
    ending_version: str | None = None
    ending_timestamp: str | None = None
    snapshot: bool | None = None
    max_files_per_trigger: Count | None = None
    max_bytes_per_trigger: str | None = None
    max_rows_per_trigger: Count | None = None
    schema: Literal["typed", "envelope"] = "typed"
    app_id: AppId | None = None


# Options of `RangeOptions` that Spark's own words replace.
_REFUSED: Final = {
    "select": ("is Spark's own work", 'Leave it out, and use rows.selectExpr("upper(country)").'),
    "types": ("is Spark's own work", "Leave it out, and use rows.where(\"_change_type = 'delete'\")."),
}


# All options that can be given to Spark, in its spelling.
_FIELDS: Final = {field.name: field for shape in (_Given, RangeOptions) for field in msgspec.structs.fields(shape)}
_OPTIONS: Final = msgspec.defstruct(
    "_Options",
    [
        (name, option.type, [] if option.default is msgspec.NODEFAULT else option.default)
        for name, option in _FIELDS.items()
        if name not in _REFUSED
    ],
    namespace={"refused": {**_Given.refused, **_REFUSED}},
    rename=spell,
)
_NAMES: Final = {name.lower(): name for name in (*option_names(_OPTIONS), *_Given.refused)}
_WORDS: Final = frozenset({"carryovers", "changes", "schema", "tableFormat"})  # in any case


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options. `end` is inclusive, None: the newest version.

    `start`: None if none was given (see `check_batch`, `check_stream`). `demanded`: the key of a sink (`ReadOptions`),
    and `positions`, as in `tailer.spark.source.views.TypedView`: no options that can be given.
    """

    table: TableRef
    read: RangeOptions = field(default_factory=RangeOptions)
    start: Start | None = None
    end: Start | None = None
    budget: Budget = field(default_factory=lambda: Budget(max_files=DEFAULT_MAX_FILES))
    envelope: bool = False
    app_id: str | None = None
    snapshot: bool | None = None
    stores: Stores = field(default_factory=Stores)
    positions: bool = False
    demanded: tuple[str, ...] = ()

    @property
    def rules(self) -> PairingRules:
        """The rules by which rows are compared."""
        return self.read.rules(self.demanded)

    async def open_table(self) -> TableLog:
        """Open the log of the table, where its catalog has it. Raises as `TableRef.located` and `TableRef.open`."""
        located = await self.table.located(self.stores)
        return located.open(self.stores, policy=self.read.policy())

    def open_files(self) -> DataFiles:
        """Make what opens the table's files, on any machine; no I/O."""
        return open_files(self.stores)

    def spelled_as(self, names: Sequence[str]) -> "SourceOptions":
        """Return the same options, with `columns` and the key spelled as in `names`, the columns of a table.

        Raises `ConfigError` for a column that is not one of `names`.
        """
        read = msgspec.structs.replace(
            self.read,
            columns=_spelled("columns", self.read.columns, names),
            key=_spelled("key", self.read.key, names),
        )
        return replace(self, read=read, demanded=tuple(_spelled("key", self.demanded, names)))

    def check_batch(self) -> None:
        """Raise `ConfigError` if these are not options of a batch."""
        if self.start is None:
            raise ConfigError("startingVersion", "is missing: a batch needs a start", _A_START)
        if self.start.kind is StartKind.LATEST:
            reason = "latest means after the newest version, so the batch would be empty"
            raise ConfigError("startingVersion", reason, "Give a version or earliest.")

    def check_stream(self) -> None:
        """Raise `ConfigError` if these are not options of a stream. Without a start it begins with a snapshot."""
        if self.start is None and self.snapshot is False:
            remedy = "Give startingVersion or startingTimestamp, or leave snapshot out."
            raise ConfigError("snapshot", "is false, and there is no other start", remedy)
        if self.start is None and self.end is not None:
            reason = "an end needs a start: without one, the stream begins with all rows of the newest version"
            raise ConfigError("startingVersion", f"is missing: {reason}", "Give startingVersion or startingTimestamp.")


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options from Spark, in any case. Raises `ConfigError` for the first problem, naming the option."""
    given, read = _given(options)
    start = _start(given)
    end = _place("ending", given.ending_version, given.ending_timestamp, (StartKind.LATEST,))
    if start is not None and end is not None and start.comes_after(end):
        kind = "Version" if end.kind is StartKind.VERSION else "Timestamp"
        raise ConfigError(f"ending{kind}", f"comes before starting{kind}", "Give a later end, or an earlier start.")
    for fault in read.faults(spell):
        raise ConfigError(spell(fault.where), fault.reason, fault.remedy)
    table = TableRef(location_of(given.path, "path"), read.table_format, read.branch, roots_of(given.allowed_roots))
    try:
        table = table.checked()
    except ConfigError as error:
        raise ConfigError(spell(error.where), error.reason, error.remedy) from None
    files, rows = given.max_files_per_trigger, given.max_rows_per_trigger
    size: int | None = None
    if given.max_bytes_per_trigger is not None:
        match = _SIZE.fullmatch(given.max_bytes_per_trigger)
        size = int(match[1]) * 1024 ** " kmgtp".index(match[2].lower() or " ") if match else 0
        if not 0 < size < 2**63:
            reason = f"{given.max_bytes_per_trigger!r} is not a size above 0"
            raise ConfigError("maxBytesPerTrigger", reason, "Give bytes, or a size such as 64m or 1g.")
    limited = (files, size, rows) != (None, None, None)
    return SourceOptions(
        table=table,
        read=read,
        start=start,
        end=end,
        budget=Budget(files if limited else DEFAULT_MAX_FILES, size, rows),
        envelope=given.schema == "envelope",
        app_id=given.app_id,
        snapshot=given.snapshot,
        stores=stores_of(given, (table.location, *table.allowed_roots)),
    )


def _given(options: Mapping[str, str]) -> tuple[_Given, RangeOptions]:
    """Return the options with numbers, booleans and lists read. Raises `ConfigError`."""
    folded = {name.lower(): text for name, text in options.items()}
    if "provider" in folded and "location" in folded:
        reason = "Spark does not hand the options of a table on to a data source in Python"
        remedy = "Use CREATE TEMPORARY VIEW v USING tailer OPTIONS (...), or spark.read.format('tailer')."
        raise ConfigError("CREATE TABLE", reason, remedy)
    named = {_NAMES.get(name.lower(), name): text.strip() for name, text in options.items()}
    if "paths" in folded:  # the form in which Spark passes a list given to `load`
        try:
            paths = msgspec.json.decode(folded["paths"], type=list[str])
        except msgspec.DecodeError as error:
            raise ConfigError("paths", "is not a list of paths in JSON", "Give path, or one table to load.") from error
        if len(paths) != 1 or "path" in folded:
            raise ConfigError("path", "must be one table", "Read several tables one by one, and union them.")
        named = {name: text for name, text in named.items() if name.lower() != "paths"} | {"path": paths[0].strip()}
    texts = {name: text.lower() if name in _WORDS else text for name, text in named.items()}
    values: dict[str, object] = {**from_texts(texts, _OPTIONS)}
    values |= {name: _columns(name, texts[name]) for name in ("columns", "key") if name in texts}
    for fault in faults_of(values, _OPTIONS, texts=True):
        is_known = fault.where in option_names(_OPTIONS)
        reason = f"is {texts[fault.where]!r}, but {fault.reason}" if is_known else fault.reason
        raise ConfigError(fault.where, reason, fault.remedy)
    if "columns" in values and "key" in values:  # without regard to case, as everywhere in Spark
        there = {column.lower(): column for column in _columns("columns", texts["columns"])}
        values["key"] = [there.get(column.lower(), column) for column in _columns("key", texts["key"])]
    return _part(values, _Given), _part(values, RangeOptions)


def _part(values: Mapping[str, object], shape: type[S]) -> S:
    """Return those of the options that `shape` has."""
    names = {spell(field.name): field.encode_name for field in msgspec.structs.fields(shape)}
    return msgspec.convert({names[name]: value for name, value in values.items() if name in names}, shape)


def _start(given: _Given) -> Start | None:
    words = (StartKind.EARLIEST, StartKind.LATEST)
    start = _place("starting", given.starting_version, given.starting_timestamp, words)
    if not given.snapshot:
        return start
    others = {
        "startingVersion": given.starting_version,
        "startingTimestamp": given.starting_timestamp,
        "endingVersion": given.ending_version,
        "endingTimestamp": given.ending_timestamp,
    }
    for name, text in others.items():
        if text is not None:
            reason = "does not go with snapshot = true, which begins with all rows of the newest version"
            raise ConfigError(name, reason, f"Leave out {name}, or snapshot.")
    return Start(StartKind.SNAPSHOT)


def _place(which: str, version: str | None, timestamp: str | None, words: Sequence[StartKind]) -> Start | None:
    """Return the place that is given by a version, one of `words`, or a time."""
    if timestamp is None:
        return None if version is None else _version(which, version, words)
    name = f"{which}Timestamp"
    if version is not None:
        raise ConfigError(name, f"does not go with {which}Version", "Give one of the two.")
    place = _parse(timestamp)
    if place is None or place.kind is not StartKind.TIMESTAMP:
        remedy = "Give a time such as 2026-03-01T12:00:00Z or 2026-03-01 12:00:00 (UTC)."
        raise ConfigError(name, f"{timestamp!r} is not a time", remedy)
    return place


def _version(which: str, text: str, words: Sequence[StartKind]) -> Start:
    prefix, name = text[: len(_TAG)].lower(), text[len(_TAG) :]
    place = _parse(f"{_TAG}{name}" if prefix == _TAG else text.lower())
    if place is None or place.kind not in (StartKind.VERSION, StartKind.TAG, *words) or place.value >= 2**63:
        remedy = f"Give a version such as 12, or {' or '.join(words)}; for a time there is {which}Timestamp."
        raise ConfigError(f"{which}Version", f"{text!r} is not a version", remedy)
    return place


def _parse(text: str) -> Start | None:
    try:
        return Start.parse(text)
    except ConfigError:
        return None


def _spelled(option: str, wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    folded = {name.lower(): name for name in names}
    paths = {column: parts for column in wanted if column.lower() not in folded and (parts := split_path(column))}
    if paths:
        sources = [paths[column][0] if column in paths else column for column in wanted]
        spelled = _spelled(option, sources, names)
        pairs = zip(spelled, wanted, strict=True)
        return [f"{name}:{paths[column][1]}" if column in paths else name for name, column in pairs]
    for column in wanted:
        if column.lower() not in folded:
            remedy = f"The columns are: {', '.join(names)}. {did_you_mean(column, names)}".rstrip()
            raise ConfigError(option, f"no column {column!r}", remedy)
    return [column if column in names else folded[column.lower()] for column in wanted]


def _columns(name: str, text: str) -> list[str]:
    """Parse names separated by commas. A name in backticks may contain commas, and doubled backticks."""
    names: list[str] = []
    place = 0
    while place < len(text) or not names or text[place - 1] == ",":
        match = _NAME.match(text, place)
        if match is None or not match[0]:
            remedy = "Give names separated by commas: id, amount, `a, b`."
            raise ConfigError(name, f"{text!r} has an empty name, or half a pair of backticks", remedy)
        names.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        place = match.end()
    folded = [column.lower() for column in names]
    for column in names:
        if folded.count(column.lower()) > 1:
            raise ConfigError(name, f"names {column!r} twice", "Name each column once.")
        if column.lower() in _ALWAYS_THERE:
            remedy = f"Leave it out of {name}: every change row has it."
            raise ConfigError(name, f"{column!r} is not a column of the table", remedy)
    return names


_ALWAYS_THERE: Final = frozenset(column.name for column in METADATA_FIELDS)
