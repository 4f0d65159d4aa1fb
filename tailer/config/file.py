"""Read the configuration file and the environment into shapes; report every fault by its key.

`tailer.config.settings` interprets the values. This module finds unknown and missing keys and wrong types, and adds the
origin of a value and the spelling of names in the environment: the pipeline `orders-eu` is ORDERS_EU there. Every table
of the file is validated on its own, so that one fault does not hide the next. Messages never contain values, which may
be secrets.
"""

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec

from tailer.changelog.rules import Carryovers
from tailer.config.options import faults_of, option_names
from tailer.config.placement import DEFAULT_SHARDS, MOST_SHARDS, EngineKind, Writers
from tailer.errors import ConfigError, did_you_mean
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange

__all__ = [
    "MISSING",
    "FileShape",
    "Key",
    "KindTable",
    "PipelineShape",
    "PipelineTable",
    "Problem",
    "Reading",
    "SparkShape",
    "StoreShape",
    "place",
    "read_file",
]

ENV_PREFIX: Final = "TAILER_"
ENV_DELIMITER: Final = "__"
_JSON_AT_THE_TOP: Final = frozenset({"drain_s", "hung_s", "spark", "stores", "pipelines"})
MISSING: Final = {
    "table": 'Add the folder that contains _delta_log, for example table = "/data/orders".',
    "sink": "Add a table [pipelines.NAME.sink] with the key kind.",
    "kind": 'Add the kind of the sink, for example kind = "delta".',
    "pipelines": "Add a table [pipelines.NAME] with the keys table and sink.",
    "prefix": 'Add the buckets or folders it is for, for example prefix = "s3://lake".',
}

_SECRETS: Final = ("access_key_id", "secret_access_key", "session_token")
_SECRETS_REMEDY: Final = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or name a `profile`."
_CLOUD_SECRETS: Final = ("account_key", "client_secret", "sas_key", "sas_token", "service_account_key")
_CLOUD_SECRETS_REMEDY: Final = "Set it in the environment: docs/stores.md lists the variables of each cloud."

# For keys that have no default.
STAND_INS: Final[Mapping[str, Any]] = {"table": "unsound", "sink": {"kind": "unsound"}, "prefix": "unsound"}

Key = tuple[str, ...]
S = TypeVar("S", bound=msgspec.Struct)

Wait = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max, description="a finite number of at least 0")]
Interval = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max, description="a finite number greater than 0")]


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


@dataclass(frozen=True, slots=True)
class KindTable:
    """The table of a sink or a catalog: its kind, and options that only this kind understands."""

    kind: str
    options: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "KindTable":
        """Make it from the table, which has a kind."""
        return cls(table["kind"], {name: value for name, value in table.items() if name != "kind"})


class _Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the file. Its values are not shown, because some are secrets."""

    def __repr__(self) -> str:
        """Return the name of the class alone."""
        return f"{type(self).__name__}(...)"


class PipelineShape(_Shape, frozen=True, kw_only=True, rename={"sink_table": "sink", "catalog_table": "catalog"}):
    """A pipeline's table."""

    missing: ClassVar = MISSING

    table: str  # the folder that contains _delta_log, or its URI, such as s3://lake/orders
    # where to begin without progress: earliest, latest, snapshot, a version or a timestamp
    start: str = "earliest"
    allowed_roots: list[str] = []  # folders outside of the table that it may refer to, such as the origin of a clone
    columns: list[str] = []  # the columns to deliver, in this order; empty: all
    row_ids: bool = False  # add _row_id and _row_commit_version, where the table tracks rows
    carryovers: Carryovers = Carryovers.DROP  # what to do with rows that a rewritten file holds unchanged
    compute_updates: bool = False  # turn a delete and an insert of one row into the two images of an update
    key: list[str] = []  # the columns that identify a row; empty: row ids, where there are any
    skip_unchanged: bool = False  # leave out updates that change nothing
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE  # fail: stop before a version that changes the columns
    on_data_loss: OnDataLoss = OnDataLoss.FAIL  # what to do when changes can no longer be read (operations.md)
    # seconds between two looks for a new version at an active table, where no notification comes sooner
    poll_interval_s: Interval = 1.0
    # the longest time between two looks, at a quiet table; default: ten times the shortest, but at most 10
    idle_poll_interval_s: Interval | None = None
    # in S3: the highest number of looks in an hour, whatever the intervals are
    max_polls_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 7200
    write: Writers = Writers.DRIVER  # who writes to the sink: this process, or Spark's executors
    # writers, with write = "executors"
    shards: Annotated[int, msgspec.Meta(ge=1, le=MOST_SHARDS)] = DEFAULT_SHARDS
    # the catalog that manages the table's commits: a table with kind
    catalog_table: dict[str, Any] | None = None
    sink_table: dict[str, Any]  # where changes go: a table with kind, and the options of that kind

    @property
    def sink(self) -> KindTable:
        """The table of the sink."""
        return KindTable.of(self.sink_table)

    @property
    def catalog(self) -> KindTable | None:
        """The table of the catalog."""
        return None if self.catalog_table is None else KindTable.of(self.catalog_table)


class SparkShape(_Shape, frozen=True, kw_only=True):
    """The table [spark], its settings not checked yet."""

    master: str | None = None  # a cluster's address, or local[N]; the default is local[*]
    remote: str | None = None  # a Spark Connect server, such as sc://host:15002, in place of master
    conf: dict[str, Any] = {}  # any of Spark's settings


class StoreShape(_Shape, frozen=True, kw_only=True):
    """The table of a store."""

    missing: ClassVar = MISSING
    refused: ClassVar = dict.fromkeys(_SECRETS, ("would be a secret in a file", _SECRETS_REMEDY)) | dict.fromkeys(
        _CLOUD_SECRETS, ("would be a secret in a file", _CLOUD_SECRETS_REMEDY)
    )

    # the tables it applies to: all below a bucket or a folder of it, such as s3://lake/sales; the longest prefix wins
    prefix: str
    # URL of the server; default: the one in the environment (AWS_ENDPOINT_URL for S3), or the cloud's
    endpoint: str | None = None
    anonymous: bool = False  # send requests without a login, to public buckets
    region: str | None = None  # S3; default: AWS_REGION, or the profile's
    path_style: bool | None = None  # S3: name the bucket in the path; default: if the endpoint is not AWS's
    profile: str | None = None  # S3: of ~/.aws/config and ~/.aws/credentials; default: AWS_PROFILE
    role_arn: str | None = None  # S3: a role to assume with the credentials found
    external_id: str | None = None  # S3: what the role's policy asks for
    requester_pays: bool = False  # S3: agree to pay for requests to buckets that ask for it
    # S3: URL of an SQS queue with the buckets' notifications: commits are found sooner
    notifications: str | None = None
    service_account: str | None = None  # Google: path of a key file; default: GOOGLE_APPLICATION_CREDENTIALS
    # Azure: how to log in, such as azure_cli (stores.md); default: by the first key in the environment
    credential_type: str | None = None


class FileShape(_Shape, frozen=True, kw_only=True):
    """The whole file; its stores, its pipelines and its table [spark] are not checked yet."""

    state_table: str | None = None  # the folder, or its URI, that keeps progress for sinks that cannot
    drain_s: Wait = 30.0  # seconds to finish after SIGTERM
    metrics: str | None = None  # host:port to serve metrics, health checks and status on
    # seconds without progress, while work is due, after which /livez reports a pipeline as hung; 0: never
    hung_s: Wait = 1800.0
    # Unix socket for `tailer status`, `pause` and so on; default: the file with .sock in place of .toml; "": none
    control: str | None = None
    control_token_file: str | None = None  # file with the token for control through the address of `metrics`
    engine: EngineKind = EngineKind.LOCAL  # where rows are read: local, spark, or auto, by the size of a version
    spark: dict[str, Any] = {}  # the table [spark]
    stores: dict[str, Any] = {}  # a table [stores.NAME] for each store with options of its own
    pipelines: dict[str, Any] = {}  # a table [pipelines.NAME] for each pipeline


@dataclass(frozen=True, slots=True)
class PipelineTable:
    """A pipeline's table as it was read: its shape, the keys that are given, and those with a wrong value."""

    shape: PipelineShape
    given: frozenset[str]
    unsound: frozenset[str]


@dataclass(slots=True)
class Reading:
    """The result of reading: the names of the file's pipelines, the shapes, and their faults.

    `unsound`: the keys at the top of the file with a wrong value. In a shape, such keys have their default or a
    stand-in, so that one fault does not hide the next.
    """

    names: tuple[str, ...] = ()
    file: FileShape | None = None
    spark: SparkShape | None = None
    stores: dict[str, StoreShape] = field(default_factory=dict)
    pipelines: dict[str, PipelineTable] = field(default_factory=dict)
    unsound: frozenset[str] = frozenset()
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
    try:
        document = _merge(document, _overrides(reading.names, reading.problems))
    except ConfigError as error:
        reading.problems.append(Problem((), error))
        return reading
    reading.file, reading.unsound = _validate(FileShape, path, (), document, reading.problems)
    if reading.file is not None:
        reading.spark, _ = _validate(SparkShape, path, ("spark",), reading.file.spark, reading.problems)
        for name, table in reading.file.stores.items():
            store, unsound = _validate(StoreShape, path, ("stores", name), table, reading.problems)
            if store is not None and not unsound:
                reading.stores[name] = store
    tables = reading.file.pipelines if reading.file is not None else document.get("pipelines")
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if isinstance(table, dict) and "start" in table:
            table["start"] = _as_text(table["start"])
        shape, unsound = _validate(PipelineShape, path, ("pipelines", name), table, reading.problems)
        if shape is not None:
            reading.pipelines[name] = PipelineTable(shape, frozenset(table) - unsound, unsound)
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
    values = _variables()
    if isinstance(values.get("pipelines"), str):
        del values["pipelines"]
        where, remedy = _variable(("pipelines",)), f"Set key by key: {_variable(('pipelines', 'name', 'table'))}."
        problems.append(Problem((), ConfigError(f"environment {where}", "is not a table in JSON", remedy)))
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


def _variables() -> dict[str, Any]:
    """Return the variables of the environment that are keys of the file, in its shape and in lower case.

    Raises `ConfigError` for one that is not UTF-8.
    """
    values: dict[str, Any] = {}
    known = option_names(FileShape)
    # A table comes before its keys, which are longer names.
    for variable in sorted((name for name in os.environ if name.upper().startswith(ENV_PREFIX)), key=str.upper):
        *tables, last = variable[len(ENV_PREFIX) :].lower().split(ENV_DELIMITER)
        if (tables or [last])[0] not in known:
            continue
        table = values
        for name in tables:
            if not isinstance(table.get(name), dict):
                table[name] = {}
            table = table[name]
        text = os.environ[variable]
        if not _is_utf8(text):
            raise ConfigError(f"environment {variable}", "is not UTF-8 text", "Set it again, in UTF-8.")
        table[last] = _as_json(text) if tables or last in _JSON_AT_THE_TOP else text
    return values


def _is_utf8(text: str) -> bool:
    # In texts of the environment, a lone surrogate stands for a byte that could not be decoded.
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _as_json(text: str) -> object:
    """Return the value of a text in JSON; other text is returned, and refused later if it must be a value."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged, spelled = dict(under), {_spelled(name): name for name in under}
    for name, value in over.items():
        # The environment has no dots and hyphens in names.
        key = name if name in under else spelled.get(name, name)
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _validate(
    shape: type[S], path: Path, key: Key, table: Any, problems: list[Problem]
) -> tuple[S | None, frozenset[str]]:
    """Return `table` as a `shape` without its wrong values, or None if it is not a table, and the keys of these."""
    if not isinstance(table, dict):
        problems.append(Problem.at(path, key, "must be a table"))
        return None, frozenset()
    faults: dict[Key, ConfigError] = {(fault.where,): fault for fault in faults_of(table, shape)}
    faults |= {(name, "kind"): fault for name, fault in _faults_of_kinds(table, shape)}
    problems += [Problem.at(path, (*key, *where), fault.reason, fault.remedy) for where, fault in faults.items()]
    unsound = frozenset(where[0] for where in faults) & set(option_names(shape))
    sound = {name: value for name, value in table.items() if name in option_names(shape) and name not in unsound}
    stand_ins = {name: STAND_INS[name] for name in unsound & STAND_INS.keys()}
    return msgspec.convert(sound | stand_ins, shape), unsound


def _faults_of_kinds(table: Mapping[str, Any], shape: type[msgspec.Struct]) -> Iterator[tuple[str, ConfigError]]:
    """Yield the names and faults of the tables of a sink and a catalog, of which only the kind is known here."""
    for name in ("sink", "catalog") if shape is PipelineShape else ():
        inner = table.get(name)
        if isinstance(inner, dict) and "kind" not in inner:
            yield name, ConfigError("kind", "is missing", MISSING["kind"])
        elif isinstance(inner, dict) and not isinstance(inner["kind"], str):
            yield name, ConfigError("kind", "must be text", "Write it in quotes.")


def _misspelled_variables() -> Iterator[Problem]:
    # Others use the prefix too (Kubernetes sets TAILER_PORT for a service named tailer), so only a name that is
    # similar to ours is a fault.
    for name in sorted(os.environ):
        if not name.upper().startswith(ENV_PREFIX):
            continue
        word = name.lower().removeprefix(ENV_PREFIX.lower()).partition(ENV_DELIMITER)[0]
        near = get_close_matches(word, option_names(FileShape), n=1)
        if near and word != near[0]:
            remedy = f"Did you mean {_variable((near[0],))}?"
            yield Problem((), ConfigError(f"environment {name}", "is not a setting", remedy))


def _spelled(name: str) -> str:
    return re.sub(r"[-.]", "_", name.lower())


def _variable(key: Key) -> str:
    return ENV_PREFIX + ENV_DELIMITER.join(_spelled(part).upper() for part in key)
