"""Read the configuration file and the environment into shapes; report every fault by its key.

`tailer.config.settings` interprets the values. This module finds what pydantic finds (wrong types, missing keys), and
adds the origin of a value, the similar key, and the spelling of names in the environment: the pipeline `orders-eu` is
ORDERS_EU there. Every table of the file is validated on its own, so that one fault does not hide the next. Messages
never contain values, which may be secrets.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from tailer.changelog.rules import Carryovers
from tailer.config.placement import DEFAULT_SHARDS, MOST_SHARDS, EngineKind, Writers
from tailer.errors import ConfigError, did_you_mean
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange

__all__ = [
    "MISSING",
    "CatalogShape",
    "FileShape",
    "Key",
    "PipelineShape",
    "Problem",
    "Reading",
    "SinkShape",
    "SparkShape",
    "place",
    "read_file",
]

ENV_PREFIX: Final = "TAILER_"
ENV_DELIMITER: Final = "__"
MISSING: Final = {
    "table": 'Add the folder that contains _delta_log, for example table = "/data/orders".',
    "sink": "Add a table [pipelines.NAME.sink] with the key kind.",
    "kind": 'Add the kind of the sink, for example kind = "delta".',
    "pipelines": "Add a table [pipelines.NAME] with the keys table and sink.",
}

# For keys that have no default.
STAND_INS: Final[Mapping[str, Any]] = {"table": "unsound", "sink": {"kind": "unsound"}}

Key = tuple[str, ...]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault at `key`. An empty key stands for the configuration as a whole."""

    key: Key
    error: ConfigError

    @classmethod
    def at(cls, path: Path, key: Key, reason: str, remedy: str = "") -> "Problem":
        """Make the problem of `key` in the file at `path`, or in the environment that overrides it."""
        return cls(key, ConfigError(place(path, key), reason, remedy))

    @property
    def pipeline(self) -> str | None:
        """The pipeline concerned; None if it is no single one."""
        return self.key[1] if len(self.key) > 1 and self.key[0] == "pipelines" else None


def _as_text(value: object) -> object:
    # TOML has its own numbers and timestamps; `start = 12` must mean the same as `start = "12"`.
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class SinkShape(BaseModel):
    """A sink's table: its kind, and options that only the sink understands."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the kind."""
        return dict(self.model_extra or {})


class CatalogShape(SinkShape):
    """A catalog's table: its kind, and options that only its adapter understands."""


class PipelineShape(BaseModel):
    """A pipeline's table."""

    model_config = ConfigDict(frozen=True)

    table: str  # the folder that contains _delta_log
    # where to begin without progress: earliest, latest, snapshot, a version or a timestamp
    start: Annotated[str, BeforeValidator(_as_text)] = "earliest"
    columns: list[str] = Field(default_factory=list)  # the columns to deliver, in this order; empty: all
    row_ids: StrictBool = False  # add _row_id and _row_commit_version, where the table tracks rows
    carryovers: Carryovers = Carryovers.DROP  # what to do with rows that a rewritten file holds unchanged
    compute_updates: StrictBool = False  # turn a delete and an insert of one row into the two images of an update
    key: list[str] = Field(default_factory=list)  # the columns that identify a row; empty: row ids, where there are any
    skip_unchanged: StrictBool = False  # leave out updates that change nothing
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE  # fail: stop before a version that changes the columns
    on_data_loss: OnDataLoss = OnDataLoss.FAIL  # what to do when changes can no longer be read (operations.md)
    # seconds between two looks for a new version, where no notification comes sooner
    poll_interval_s: float = Field(default=1.0, gt=0, allow_inf_nan=False, strict=True)
    write: Writers = Writers.DRIVER  # who writes to the sink: this process, or Spark's executors
    shards: int = Field(default=DEFAULT_SHARDS, ge=1, le=MOST_SHARDS, strict=True)  # writers, with write = "executors"
    catalog: CatalogShape | None = None  # the catalog that manages the table's commits: a table with kind
    sink: SinkShape  # where changes go: a table with kind, and the options of that kind


class SparkShape(BaseModel):
    """The table [spark], its settings not checked yet."""

    model_config = ConfigDict(frozen=True)

    master: str | None = None  # a cluster's address, or local[N]; the default is local[*]
    remote: str | None = None  # a Spark Connect server, such as sc://host:15002, in place of master
    conf: dict[str, Any] = Field(default_factory=dict)  # any of Spark's settings


class FileShape(BaseModel):
    """The whole file; its pipelines and its table [spark] are not checked yet."""

    model_config = ConfigDict(frozen=True)

    state_table: str | None = None  # the folder that keeps progress for sinks that cannot, such as stdout
    drain_s: float = Field(default=30.0, ge=0, allow_inf_nan=False, strict=True)  # seconds to finish after SIGTERM
    metrics: str | None = None  # host:port to serve metrics and health checks on
    engine: EngineKind = EngineKind.LOCAL  # where rows are read: local, spark, or auto, by the size of a version
    spark: dict[str, Any] = Field(default_factory=dict)  # the table [spark]
    pipelines: dict[str, Any] = Field(default_factory=dict)  # a table [pipelines.NAME] for each pipeline


class _Variables(BaseSettings):
    """The keys of `FileShape` as variables of the environment."""

    state_table: str = ""
    drain_s: str = ""
    metrics: str = ""
    engine: str = ""
    # A nested type makes pydantic read the text as JSON, which `conf` needs.
    spark: dict[str, dict[str, Any]] = Field(default_factory=dict)
    pipelines: dict[str, Any] = Field(default_factory=dict)


@dataclass(slots=True)
class Reading:
    """The result of reading: the names of the file's pipelines, the shapes, and their faults.

    `unsound`: by the key of a table, its keys with a wrong value. In the shape they have their default or a stand-in,
    so that one fault does not hide the next.
    """

    names: tuple[str, ...] = ()
    file: FileShape | None = None
    spark: SparkShape | None = None
    pipelines: dict[str, PipelineShape] = field(default_factory=dict)
    unsound: dict[Key, frozenset[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_file(path: Path) -> Reading:
    """Read the file at `path`, overridden by the environment. Faults are in the result; nothing is raised."""
    reading = Reading()
    try:
        document = _document(path)
    except ConfigError as error:
        reading.problems.append(Problem((), error))
        return reading
    pipelines = document.get("pipelines")
    reading.names = tuple(pipelines) if isinstance(pipelines, dict) else ()
    reading.problems += _misspelled_variables()
    document = _merge(document, _overrides(reading.names, reading.problems))
    reading.file = _validate(FileShape, path, (), document, reading)
    if reading.file is not None:
        reading.spark = _validate(SparkShape, path, ("spark",), reading.file.spark, reading)
    tables = reading.file.pipelines if reading.file is not None else document.get("pipelines")
    for name, table in tables.items() if isinstance(tables, dict) else ():
        shape = _validate(PipelineShape, path, ("pipelines", name), table, reading)
        if shape is not None:
            reading.pipelines[name] = shape
    return reading


def place(path: Path, key: Key) -> str:
    """Return the place of `key` for an error: the variable that sets it, or else the file."""
    variable = _variable(key)
    if any(name.upper() == variable for name in os.environ):
        return f"environment {variable}"
    return f"{path}: {'.'.join(key)}"


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(str(path), f"cannot be read: {reason}", "Check the path of the configuration.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "is not TOML: not UTF-8 text", "Check the path of the configuration.") from error
    except tomllib.TOMLDecodeError as error:
        remedy = "In TOML, text needs quotes and a key may appear only once."
        raise ConfigError(str(path), f"is not TOML: {error}", remedy) from error


def _overrides(names: tuple[str, ...], problems: list[Problem]) -> dict[str, Any]:
    """Return the values of the environment in the shape of the file, with the file's names of pipelines."""
    source = EnvSettingsSource(_Variables, env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_DELIMITER)
    try:
        values = source()
    except SettingsError:
        where, remedy = _variable(("pipelines",)), f"Set key by key: {_variable(('pipelines', 'name', 'table'))}."
        problems.append(Problem((), ConfigError(f"environment {where}", "is not a table in JSON", remedy)))
        return {}
    if "drain_s" in values:
        values["drain_s"] = _as_number(values["drain_s"])
    spelled = {_spelled(name): name for name in names}
    pipelines = values.get("pipelines")
    if not isinstance(pipelines, dict):
        return values
    for word in pipelines.keys() - spelled.keys():
        remedy = did_you_mean(word, spelled) or "The environment can only override pipelines that the file has."
        where = f"environment {_variable(('pipelines', word))}"
        problems.append(Problem((), ConfigError(where, f"the file has no pipeline {word!r}", remedy)))
    values["pipelines"] = {spelled[word]: value for word, value in pipelines.items() if word in spelled}
    return values


def _as_number(text: str) -> object:
    """Return the number in a text of the environment; other text is returned, and refused later."""
    try:
        return float(text)
    except ValueError:
        return text


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged, spelled = dict(under), {_spelled(name): name for name in under}
    for name, value in over.items():
        # The environment has no dots and hyphens in names.
        key = name if name in under else spelled.get(name, name)
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _validate(shape: type[M], path: Path, key: Key, table: Any, reading: Reading) -> M | None:
    """Return `table` as a `shape` without its wrong values, or None if it is not a table. Faults go to `reading`."""
    known = shape.model_fields
    for unknown in table.keys() - known.keys() if isinstance(table, dict) else ():
        remedy = did_you_mean(unknown, known) or f"Known: {', '.join(known)}."
        reading.problems.append(Problem.at(path, (*key, unknown), "unknown key", remedy))
    try:
        return shape.model_validate(table)
    except ValidationError as invalid:
        faults = invalid.errors(include_input=False)
        reading.problems.extend(_fault(path, key, fault) for fault in faults)
        unsound = frozenset(str(fault["loc"][0]) for fault in faults if fault["loc"])
        if not isinstance(table, dict):
            return None
        reading.unsound[key] = unsound
        sound = {name: value for name, value in table.items() if name not in unsound}
        return shape.model_validate(sound | {name: STAND_INS[name] for name in unsound & STAND_INS.keys()})


def _fault(path: Path, key: Key, error: ErrorDetails) -> Problem:
    """Return an error of pydantic as a problem."""
    key = (*key, *(str(part) for part in error["loc"]))
    match error["type"]:
        case "missing":
            return Problem.at(path, key, "is missing", MISSING[key[-1]])
        case "model_type" | "dict_type":
            return Problem.at(path, key, "must be a table")
        case "list_type":
            return Problem.at(path, key, "must be a list")
        case "string_type":
            return Problem.at(path, key, "must be text")
        case "bool_type":
            return Problem.at(path, key, "must be true or false", "Write it without quotes.")
        case "enum":
            return Problem.at(path, key, f"must be {error['ctx']['expected']}")
    return Problem.at(path, key, error["msg"].replace("Input should be", "must be").partition(",")[0])


def _misspelled_variables() -> Iterator[Problem]:
    # Others use the prefix too (Kubernetes sets TAILER_PORT for a service named tailer), so only a name that is
    # similar to ours is a fault.
    for name in sorted(os.environ):
        if not name.upper().startswith(ENV_PREFIX):
            continue
        word = name.lower().removeprefix(ENV_PREFIX.lower()).partition(ENV_DELIMITER)[0]
        near = get_close_matches(word, FileShape.model_fields, n=1)
        if near and word != near[0]:
            remedy = f"Did you mean {_variable((near[0],))}?"
            yield Problem((), ConfigError(f"environment {name}", "is not a setting", remedy))


def _spelled(name: str) -> str:
    return re.sub(r"[-.]", "_", name.lower())


def _variable(key: Key) -> str:
    return ENV_PREFIX + ENV_DELIMITER.join(_spelled(part).upper() for part in key)
