"""The options of the data source `tailer`, from the text that Spark hands over to checked values. No I/O, no pyspark.

Where to read (a version, or a time such as `2026-03-01T12:00:00Z` or `2026-03-01 12:00:00.5`, UTC where it has no zone;
both ends belong to it):

| option | value |
|---|---|
| `path` | the folder that contains `_delta_log`; also as `file:/...`; what `load` is given |
| `startingVersion` | a version, `earliest`, or (streams) `latest`: after the newest one |
| `startingTimestamp` | the first version not earlier than it |
| `snapshot` | `true`: begin with all rows of the newest version; a stream without a start does |
| `endingVersion`, `endingTimestamp` | default: the newest; a stream has no more rows after it |

How much a micro-batch holds; without any of the three, 1000 files:

| option | value |
|---|---|
| `maxFilesPerTrigger`, `maxRowsPerTrigger` | a number; rows are those that files have |
| `maxBytesPerTrigger` | bytes, or as Spark writes sizes: `64m`, `1g` |

What the rows are:

| option | value |
|---|---|
| `columns` | names separated by commas, in backticks if they contain commas; default: all |
| `filter` | a condition (`filters`); where rows are typed it may name columns that are not in `columns` |
| `carryovers` | `drop` (default) or `keep`: rows that a rewritten file holds unchanged |
| `computeUpdates` | `true`: make a delete and an insert of one row the two images of an update |
| `netChanges` | `true`: only the net change of each row, over a batch or a micro-batch |
| `key` | columns that identify rows for these two; default: row tracking, if the table has it |
| `rowIds` | `true`: add `_row_id` and `_row_commit_version`, for tables that track rows |
| `schema` | `typed` (default): the table's columns; `envelope`: JSON that survives changes of the schema |
| `appId` | a name for the query: offsets of another are refused |

Names of options and columns are found without regard to case, as everywhere in Spark.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tailer.changelog.rules import Carryovers, PairingRules
from tailer.errors import ConfigError
from tailer.events import METADATA_FIELDS
from tailer.spark.source.admission import Budget
from tailer.start import Start, StartKind

if TYPE_CHECKING:
    from tailer.spark.source.filters import RowFilter

__all__ = ["DEFAULT_MAX_FILES", "SourceOptions", "read_options"]

DEFAULT_MAX_FILES: Final = 1000

T = TypeVar("T")

_NAMES: Final = (
    "path",
    "startingVersion",
    "startingTimestamp",
    "endingVersion",
    "endingTimestamp",
    "snapshot",
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "columns",
    "filter",
    "carryovers",
    "computeUpdates",
    "netChanges",
    "key",
    "rowIds",
    "schema",
    "appId",
)
_FOLDED: Final = {name.lower(): name for name in _NAMES}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_SIZE: Final = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE | re.ASCII)
_NAME: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]*[^`,\s]))\s*(?:,|$)")
_A_START: Final = "Give startingVersion, startingTimestamp or snapshot = true."


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options. `path` is absolute; `end` is inclusive, None: the newest version.

    `start`: None if none was given (see `check_batch`, `check_stream`). `columns`: empty for all.
    """

    path: Path
    start: Start | None = None
    end: Start | None = None
    budget: Budget = field(default_factory=lambda: Budget(max_files=DEFAULT_MAX_FILES))
    columns: tuple[str, ...] = ()
    filter: "RowFilter | None" = None
    rules: PairingRules = field(default_factory=PairingRules)
    net_changes: bool = False
    row_ids: bool = False
    envelope: bool = False
    app_id: str | None = None
    snapshot: bool | None = None

    def spelled_as(self, names: Sequence[str]) -> "SourceOptions":
        """Return the same options, with `columns` and the key spelled as in `names`, the columns of a table.

        Raises `ConfigError` for a column that is not one of `names`.
        """
        columns, key = _spelled("columns", self.columns, names), _spelled("key", self.rules.key, names)
        return replace(self, columns=columns, rules=replace(self.rules, key=key))

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
    given = _known(options)
    reading = _Reading(given)
    start, end = reading.start(), reading.end()
    _check_range(start, end)
    columns = _columns("columns", given["columns"]) if "columns" in given else ()
    return SourceOptions(
        path=reading.path(),
        start=start,
        end=end,
        budget=reading.budget(),
        columns=columns,
        filter=reading.optional("filter", _filter),
        rules=reading.rules(columns),
        net_changes=reading.flag("netChanges"),
        row_ids=reading.flag("rowIds"),
        envelope=reading.word("schema", ("typed", "envelope")) == "envelope",
        app_id=reading.optional("appId", _app_id),
        snapshot=reading.optional("snapshot", _flag),
    )


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Map the options to their names here. Raises `ConfigError`."""
    folded = {name.lower(): text for name, text in options.items()}
    if "provider" in folded and "location" in folded:
        reason = "Spark does not hand the options of a table on to a data source in Python"
        remedy = "Use CREATE TEMPORARY VIEW v USING tailer OPTIONS (...), or spark.read.format('tailer')."
        raise ConfigError("CREATE TABLE", reason, remedy)
    if "paths" in folded:  # the form in which Spark passes a list given to `load`
        paths = json.loads(folded.pop("paths"))
        if len(paths) != 1 or "path" in folded:
            raise ConfigError("path", "must be one table", "Read several tables one by one, and union them.")
        folded["path"] = paths[0]
    spelled = {name.lower(): name for name in options}
    for name in folded:
        if name not in _FOLDED:
            near = get_close_matches(name, _FOLDED, n=1)
            remedy = f"Did you mean {_FOLDED[near[0]]}?" if near else f"The options are: {', '.join(_NAMES)}."
            raise ConfigError(spelled[name], "is not an option of the data source tailer", remedy)
    return {_FOLDED[name]: text.strip() for name, text in folded.items()}


class _Reading:
    """A reader of options, which converts each to its value."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def optional(self, name: str, read: Callable[[str, str], T]) -> T | None:
        return read(name, self._given[name]) if name in self._given else None

    def flag(self, name: str) -> bool:
        return self.optional(name, _flag) or False

    def word(self, name: str, words: Sequence[str]) -> str:
        """Return one of `words`; the first is the default."""
        word = self._given.get(name, words[0]).lower()
        if word not in words:
            raise ConfigError(name, f"{self._given[name]!r} is not {' or '.join(words)}", f"Give {words[0]}.")
        return word

    def path(self) -> Path:
        text = self._given.get("path", "")
        if not text:
            raise ConfigError(
                "path", "is missing or empty", "Give the folder that contains _delta_log: load('/data/t')."
            )
        scheme = _SCHEME.fullmatch(text)
        if scheme is None:
            return _folder(text)
        if scheme[1].lower() != "file":
            # The rest of an address may hold a secret.
            raise ConfigError("path", f"{scheme[1]}: is not a local path", "Give a folder that all executors can read.")
        # As in Hadoop: one slash or three, and no escapes.
        local = re.sub(r"^//(?=/)", "", scheme[2])
        if not local.startswith("/") or re.match(r"//[^/]", local):
            raise ConfigError("path", "is not an absolute path on this machine", "Write it as file:///data/orders.")
        return _folder(local)

    def start(self) -> Start | None:
        start = self._place("startingVersion", "startingTimestamp", (StartKind.EARLIEST, StartKind.LATEST))
        if not self.flag("snapshot"):
            return start
        for name in ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp"):
            if name in self._given:
                reason = "does not go with snapshot = true, which begins with all rows of the newest version"
                raise ConfigError(name, reason, f"Leave out {name}, or snapshot.")
        return Start(StartKind.SNAPSHOT)

    def end(self) -> Start | None:
        return self._place("endingVersion", "endingTimestamp", (StartKind.LATEST,))

    def _place(self, version: str, timestamp: str, words: tuple[StartKind, ...]) -> Start | None:
        if version in self._given and timestamp in self._given:
            raise ConfigError(timestamp, f"does not go with {version}", "Give one of the two.")
        if timestamp in self._given:
            return _moment(timestamp, self._given[timestamp])
        return _version(version, self._given[version], words) if version in self._given else None

    def budget(self) -> Budget:
        files = self.optional("maxFilesPerTrigger", _count)
        size = self.optional("maxBytesPerTrigger", _size)
        rows = self.optional("maxRowsPerTrigger", _count)
        limited = (files, size, rows) != (None, None, None)
        return Budget(files if limited else DEFAULT_MAX_FILES, size, rows)

    def rules(self, columns: Sequence[str]) -> PairingRules:
        carryovers = Carryovers(self.word("carryovers", [each.value for each in Carryovers]))
        updates, net = self.flag("computeUpdates"), self.flag("netChanges")
        key = _columns("key", self._given["key"]) if "key" in self._given else ()
        if net and carryovers is Carryovers.KEEP:
            raise ConfigError(
                "carryovers", "does not go with netChanges: what cancels out is never shown", "Leave it out."
            )
        if key and not (updates or net):
            raise ConfigError("key", "is of no use without computeUpdates or netChanges", "Add computeUpdates = true.")
        there = {column.lower() for column in columns}
        for column in key:
            if columns and column.lower() not in there:
                raise ConfigError(
                    "key", f"{column!r} is not one of columns", "The key column must also be listed in `columns`."
                )
        return PairingRules(carryovers, updates, key)


def _folder(text: str) -> Path:
    """Resolve a path. Relative paths are relative to the current folder, as Spark's are."""
    one_slash = re.sub("^/+", "/", text)
    return Path(os.path.normpath(Path.cwd() / one_slash))


def _spelled(option: str, wanted: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    folded = {name.lower(): name for name in names}
    for column in wanted:
        if column.lower() not in folded:
            near = get_close_matches(column.lower(), folded, n=1)
            meant = f" Did you mean {folded[near[0]]!r}?" if near else ""
            raise ConfigError(option, f"no column {column!r}", f"The columns are: {', '.join(names)}.{meant}")
    return tuple(column if column in names else folded[column.lower()] for column in wanted)


def _check_range(start: Start | None, end: Start | None) -> None:
    if start is not None and end is not None and start.kind is end.kind and start.value > end.value:
        kind = "Version" if end.kind is StartKind.VERSION else "Timestamp"
        raise ConfigError(f"ending{kind}", f"comes before starting{kind}", "Give a later end, or an earlier start.")


def _version(name: str, text: str, words: tuple[StartKind, ...]) -> Start:
    if text.lower() in words:
        return Start(StartKind(text.lower()))
    if not (text.isascii() and text.isdigit()) or int(text) >= 2**63:
        remedy = f"Give a version such as 12, or {' or '.join(words)}; for a time there is {name[:-7]}Timestamp."
        raise ConfigError(name, f"{text!r} is not a version", remedy)
    return Start(StartKind.VERSION, int(text))


def _moment(name: str, text: str) -> Start:
    try:
        moment = Start.parse(text, name)
    except ConfigError:
        moment = None
    if moment is None or moment.kind is not StartKind.TIMESTAMP:
        remedy = "Give a time such as 2026-03-01T12:00:00Z or 2026-03-01 12:00:00 (UTC)."
        raise ConfigError(name, f"{text!r} is not a time", remedy)
    return moment


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(name, f"{text!r} is not true or false", "Give true or false.")
    return text.lower() == "true"


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 2**63:
        raise ConfigError(name, f"{text!r} is not a number above 0", "Give a number, such as 1000.")
    return int(text)


def _size(name: str, text: str) -> int:
    match = _SIZE.fullmatch(text)
    size = int(match[1]) * 1024 ** " kmgtp".index(match[2].lower() or " ") if match else 0
    if not 0 < size < 2**63:
        raise ConfigError(name, f"{text!r} is not a size above 0", "Give bytes, or a size such as 64m or 1g.")
    return size


def _columns(name: str, text: str) -> tuple[str, ...]:
    """Parse names separated by commas. A name in backticks may contain commas, and doubled backticks."""
    found: list[str] = []
    place = 0
    while place < len(text) or not found or text[place - 1] == ",":
        match = _NAME.match(text, place)
        if match is None or not match[0]:
            remedy = "Give names separated by commas: id, amount, `a, b`."
            raise ConfigError(name, f"{text!r} has an empty name, or half a pair of backticks", remedy)
        found.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        place = match.end()
    folded = [column.lower() for column in found]
    for column in found:
        if folded.count(column.lower()) > 1:
            raise ConfigError(name, f"names {column!r} twice", "Name each column once.")
        if column.lower() in _ALWAYS_THERE:
            remedy = f"Leave it out of {name}: every change row has it."
            raise ConfigError(name, f"{column!r} is not a column of the table", remedy)
    return tuple(found)


_ALWAYS_THERE: Final = frozenset(column.name for column in METADATA_FIELDS)


def _filter(name: str, text: str) -> "RowFilter":
    # Takes a tenth of a second, in every process of a query.
    from tailer.spark.source.filters import RowFilter  # noqa: PLC0415

    if not text:
        raise ConfigError(name, "is empty", "Leave it out to have all rows.")
    return RowFilter(text)


def _app_id(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        raise ConfigError(name, f"{text!r} is not a name", "Use letters, digits, '_', '.' and '-'.")
    return text
