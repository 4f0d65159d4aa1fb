"""The options of reading, and the tables of the configuration file with their keys: one class for each kind of table.

The comment at a key is its description in `docs/configuration.md`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

import msgspec

from tailer.changelog.rules import Carryovers, PairingRules
from tailer.errors import ConfigError
from tailer.events import ChangeType, ChangeWord, change_types
from tailer.pipeline.policy import ChangeSource, OnDataLoss, OnSchemaChange, Policy
from tailer.sink import Demands
from tailer.start import Start, StartKind, check_order
from tailer.stores.secrets import Secret

__all__ = [
    "AHEAD_BYTES",
    "DEFAULT_SHARDS",
    "LOCAL_MASTER",
    "MISSING",
    "MOST_SHARDS",
    "EngineKind",
    "FileShape",
    "KindTable",
    "PipelineShape",
    "RangeOptions",
    "ReadOptions",
    "SparkSettings",
    "SparkShape",
    "StoreAccess",
    "StoreShape",
    "Writers",
]

LOCAL_MASTER: Final = "local[*]"
AHEAD_BYTES: Final = 256 * 2**20  # of Arrow memory of the process, up to which the daemon reads ahead
DEFAULT_SHARDS: Final = 4
MOST_SHARDS: Final = 1024

MISSING: Final = {
    "table": 'Add the folder that contains _delta_log (or another log), for example table = "/data/orders".',
    "sink": "Add a table [pipelines.NAME.sink] with the key kind.",
    "sink.kind": 'Add the kind of the sink, for example kind = "delta".',
    "catalog.kind": 'Add the kind of the catalog: kind = "unity".',
    "pipelines": "Add a table [pipelines.NAME] with the keys table and sink.",
    "prefix": 'Add the buckets or folders it is for, for example prefix = "s3://lake".',
}

_SECRETS: Final = ("access_key_id", "secret_access_key", "session_token")
_SECRETS_REMEDY: Final = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or name a `profile`."
_CLOUD_SECRETS: Final = ("account_key", "client_secret", "sas_key", "sas_token", "service_account_key")
_CLOUD_SECRETS_REMEDY: Final = "Set it in the environment: docs/stores.md lists the variables of each cloud."
_PROXY_REMEDY: Final = "Leave it out. Put a proxy that speaks HTTPS before the address of metrics."

Wait = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max, description="a finite number of at least 0")]
Interval = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max, description="a finite number greater than 0")]


class EngineKind(StrEnum):
    """The engine that reads the rows of a plan."""

    LOCAL = "local"  # threads of this process
    SPARK = "spark"  # executors
    AUTO = "auto"  # executors where a version is large enough to be worth it, else threads


class Writers(StrEnum):
    """The process that writes a pipeline's rows to its sink."""

    DRIVER = "driver"  # this process
    EXECUTORS = "executors"  # Spark's, side by side


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The address of Spark, and its settings.

    `master`: the cluster to start a driver for. `conf`: any of Spark's settings as text; they may hold secrets and are
    never shown.
    """

    master: str = LOCAL_MASTER
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)


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


# Spells an option, or a switch that is turned on: `key`, or `compute_updates = true`.
Spelling = Callable[[str], str]


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that say which changes of a table to read. Each way to read spells them in its own way.

    A pipeline writes `compute_updates = true`, the Python API `compute_updates=True`, `tail` `--compute-updates`, and
    the data source for Spark `computeUpdates`. Faults are found here, in one text for all of them.
    """

    # such as delta; default: by the folder's content, in a store by its name
    table_format: str | None = None
    branch: str | None = None  # a branch of a Lance dataset or an Iceberg table; default: main
    columns: list[str] = []  # columns to deliver, in this order; default: all
    where: str | None = None  # rows to deliver: a condition in SQL (shape.md); default: all
    select: str | None = None  # in place of columns: SQL expressions (shape.md)
    row_ids: bool = False  # add _row_id and _row_commit_version, if the table tracks rows
    changes: ChangeSource = ChangeSource.FEED  # compare: read data files even where changes are recorded (delta.md)
    carryovers: Carryovers = Carryovers.DROP  # rows that a rewritten file holds unchanged
    compute_updates: bool = False  # turn delete and insert of a row into an update
    key: list[str] = []  # columns that identify a row; default: row ids, if any
    skip_unchanged: bool = False  # leave out updates without a change
    types: list[ChangeWord] = []  # types of changes to deliver; not to a mirror; default: all

    def faults(self, spell: Spelling = str) -> Iterator[ConfigError]:
        """Yield what is wrong with these options, whatever the columns of the table are; `where` is the field."""
        yield from self.policy().faults()
        if len(set(self.key)) < len(self.key):
            yield ConfigError("key", "names a column twice", "Name each column once.")
        yield from self.key_faults("key", self.key, spell)

    def type_faults(self, demands: Demands, start: StartKind, on_data_loss: OnDataLoss) -> Iterator[ConfigError]:
        """Yield an error for each thing that needs types of changes that `types` leaves out.

        `demands`: of the sink. `start`, `on_data_loss`: a snapshot delivers the rows of the table as inserts.
        """
        types = change_types(self.types)
        images = types & {ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE}
        if types and demands.whole:
            yield ConfigError("types", "leaves out changes that a mirror needs", "Leave it out, or append to a log.")
        elif demands.key and len(images) == 1:
            reason = "has one image of an update, but the sink has a key: its readers need both"
            yield ConfigError("types", reason, 'Write "update" for both, or remove the key of the sink.')
        if types and ChangeType.INSERT not in types:
            reason = 'needs "insert" among types: the rows of a snapshot are inserts'
            if start is StartKind.SNAPSHOT:
                yield ConfigError("start", reason, 'Add it, or start at "earliest" or "latest".')
            if on_data_loss is OnDataLoss.RESNAPSHOT:
                yield ConfigError("on_data_loss", reason, 'Add it, or choose "fail" or "skip-with-gap-event".')

    def idle_key(self, spell: Spelling = str) -> Iterator[ConfigError]:
        """Yield an error where there is a key, and nothing that compares rows by it."""
        if self.key and not self.compute_updates:
            reason = f"has no effect without {spell('compute_updates')}"
            yield ConfigError("key", reason, f"Add {spell('compute_updates = true')}.")

    def key_faults(self, where: str, key: Sequence[str], spell: Spelling = str) -> Iterator[ConfigError]:
        """Yield an error for each column of the `key`, given by the option `where`, that is not delivered."""
        for column in key if self.columns else ():
            if column not in self.columns:
                remedy = "Add it there: a key column must be delivered, too."
                yield ConfigError(where, f"{column!r} is not one of {spell('columns')}", remedy)

    def policy(
        self,
        on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE,
        on_data_loss: OnDataLoss = OnDataLoss.FAIL,
    ) -> Policy:
        """Return what chooses rows and columns of a plan."""
        return Policy(
            columns=tuple(self.columns),
            row_ids=self.row_ids,
            on_schema_change=on_schema_change,
            on_data_loss=on_data_loss,
            where=self.where,
            select=self.select,
            types=change_types(self.types),
            changes=self.changes,
        )

    def rules(self, demanded: tuple[str, ...] = ()) -> PairingRules:
        """Return the rules by which the rows of a rewritten file are compared.

        `demanded`: the key by which a sink identifies rows, whose nulls are equal; none: that of these options.
        """
        updates, key = self.compute_updates or bool(demanded), demanded or tuple(self.key)
        return PairingRules(self.carryovers, updates, key, self.skip_unchanged, null_keys=bool(demanded))


class RangeOptions(ReadOptions, frozen=True, kw_only=True):
    """The same for a range of versions."""

    net: bool = False  # only the net change of each row over all versions

    def faults(self, spell: Spelling = str) -> Iterator[ConfigError]:
        """See `ReadOptions.faults`; nothing but these options compares rows."""
        yield from super().faults(spell)
        yield from self.idle_key(spell) if not self.net else ()
        ineffective = {"carryovers": self.carryovers is Carryovers.KEEP, "skip_unchanged": self.skip_unchanged}
        for option in (name for name, given in ineffective.items() if self.net and given):
            reason = f"does not go with {spell('net')}: what cancels out is never shown"
            yield ConfigError(option, reason, "Leave it out.")

    def check_range(self, start: Start, end: Start | None, spell: Spelling = str) -> None:
        """Raise `ConfigError` where the versions from `start` to `end` (None: no end) are no range for these."""
        if end is not None and end.kind in (StartKind.EARLIEST, StartKind.SNAPSHOT):
            raise ConfigError(
                spell("end"), f"{end.kind.value!r} is not an end point", "Give latest, a version or a time."
            )
        check_order(start, end, spell("start"))
        if self.net and (end is None or start.kind in (StartKind.SNAPSHOT, StartKind.LATEST)):
            remedy = "Start at earliest, a version or a time, and end at latest, a version or a time."
            raise ConfigError(spell("net"), "needs a range of versions", remedy)


class PipelineShape(ReadOptions, frozen=True, kw_only=True, rename={"sink_table": "sink", "catalog_table": "catalog"}):
    """A pipeline's table: where its changes come from and go to, besides the options of reading."""

    __repr__ = _Shape.__repr__

    missing: ClassVar = MISSING

    # folder, URI (s3://lake/orders) or name in a catalog (glue://db/orders); with *: many (many_tables.md)
    table: str
    # first start: earliest, latest, snapshot, a version, a timestamp, tag:NAME
    start: str = "earliest"
    # folders outside the table that may hold its files (stores.md)
    allowed_roots: list[str] = msgspec.field(default_factory=list)
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE  # fail: stop before columns change
    on_data_loss: OnDataLoss = OnDataLoss.FAIL  # when changes are lost (after_a_loss.md)
    # seconds between looks for a version (stores.md)
    poll_interval_s: Interval = 1.0
    # the same for a quiet table; default: 10 times as long, at most 10; announced or local: 30 times, at most 30
    idle_poll_interval_s: Interval | None = None
    # in a store: most looks in an hour, unless commits are announced
    max_polls_per_hour: Annotated[int, msgspec.Meta(ge=1)] = 7200
    # of a template: seconds between looks for tables
    discover_interval_s: Interval = 60.0
    # who writes; default: executors, if engine is spark and they can (spark.md)
    write: Writers | None = None
    # writers, if executors write to Kafka
    shards: Annotated[int, msgspec.Meta(ge=1, le=MOST_SHARDS)] = DEFAULT_SHARDS
    # the catalog of the table's commits: a table with kind
    catalog_table: dict[str, Any] | None = None
    sink_table: dict[str, Any]  # the target: a table with kind and its options

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

    master: str | None = None  # a cluster's address, or local[N]; default: local[*]
    conf: dict[str, Any] = {}  # any settings of Spark


class StoreAccess(_Shape, frozen=True, kw_only=True):
    """The place of a store and the login, as the file and Spark's data source spell them."""

    # URL of the server; default: the environment's (AWS_ENDPOINT_URL for S3), or the cloud's
    endpoint: str | None = None
    anonymous: bool = False  # no login, for public buckets
    region: str | None = None  # S3, Glue; default: AWS_REGION, or the profile's
    path_style: bool | None = None  # S3: bucket in the path; default: unless the endpoint is AWS's
    profile: str | None = None  # S3, Glue: of ~/.aws/config and ~/.aws/credentials; default: AWS_PROFILE
    role_arn: str | None = None  # S3, Glue: a role to assume
    external_id: str | None = None  # S3, Glue: what the role's policy asks for
    requester_pays: bool = False  # S3: pay for requests to buckets that ask for it
    service_account: str | None = None  # Google: path of a key file; default: GOOGLE_APPLICATION_CREDENTIALS
    # Azure: how to log in (stores.md); default: the first key in the environment
    credential_type: str | None = None


class StoreShape(StoreAccess, frozen=True, kw_only=True):
    """The table of a store."""

    missing: ClassVar = MISSING
    refused: ClassVar = dict.fromkeys(_SECRETS, ("would be a secret in a file", _SECRETS_REMEDY)) | dict.fromkeys(
        _CLOUD_SECRETS, ("would be a secret in a file", _CLOUD_SECRETS_REMEDY)
    )

    # a folder (s3://lake/sales; the longest wins) or a Glue database (glue://db)
    prefix: str
    # S3: URL of an SQS queue that announces commits (stores.md)
    notifications: str | None = None


class FileShape(_Shape, frozen=True, kw_only=True):
    """The whole file; its stores, its pipelines and its table [spark] are not checked yet."""

    refused: ClassVar = {"orders_file": ("has another name", "Rename it to backfills_file.")} | dict.fromkeys(
        ("metrics_certificate_file", "metrics_key_file"), ("is no option any more", _PROXY_REMEDY)
    )

    state_table: str | None = None  # folder or URI that keeps progress for sinks that cannot
    drain_s: Wait = 30.0  # seconds to finish after SIGTERM
    metrics: str | None = None  # host:port of metrics, health checks and status
    metrics_token: Secret = Secret()  # the token for `metrics`
    # /livez fails after so many seconds without progress while work is due; 0: never
    hung_s: Wait = 1800.0
    # seconds without a heartbeat until a standby takes over
    standby_after_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 5.0
    # Unix socket for commands; default: this file's path with .sock in place of .toml; "": none
    control: str | None = None
    # the token for commands over `metrics`
    control_token: Secret = Secret()
    # keeps backfills over restarts; default: the socket's path with .backfills.json in place of .sock
    backfills_file: str | None = None
    engine: EngineKind = EngineKind.LOCAL  # where rows are read; auto: by the size of a version
    # with more bytes of rows in memory, no pipeline reads ahead
    read_ahead_bytes: Annotated[int, msgspec.Meta(ge=0)] = AHEAD_BYTES
    spark: dict[str, Any] = {}  # the table [spark]
    stores: dict[str, Any] = {}  # tables [stores.NAME]
    catalogs: dict[str, Any] = {}  # tables [catalogs.NAME] (iceberg.md)
    reload_on_change: bool = True  # reload when this file changes; false: only on SIGHUP
    defaults: dict[str, Any] = {}  # the table [defaults]: keys that all pipelines inherit
    pipelines: dict[str, Any] = {}  # tables [pipelines.NAME]
