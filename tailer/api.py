"""The Python API: a table's changes as Arrow record batches, over the pipeline that `tailer tail` runs.

The pipeline runs in an event loop on a thread of its own, so the same object serves synchronous and asynchronous code
and works where another event loop already runs. At most one sink write is buffered ahead of the reader (invariant 7).
The pipeline stops when the reader stops iterating. Nothing is remembered: each iteration reads the range again.
"""

import atexit
import os
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

import msgspec
import pyarrow as pa
from anyio import EndOfStream, create_memory_object_stream, to_thread
from anyio.from_thread import start_blocking_portal
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from typing_extensions import override

from tailer.changelog.carryovers import ChangelogCounts
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.net_changes import net_changes
from tailer.config.options import faults_of
from tailer.config.shapes import RangeOptions
from tailer.config.tables import TableRef, open_files
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, SchemaChanged, brief_errors, how_to_install
from tailer.events import ChangeBatch, ControlEvent, joined_rows
from tailer.formats.registry import parse_table
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import ChangePlan, Position, output_schema
from tailer.sink import Progress, Sink, SinkTransaction
from tailer.start import Place, Start, StartKind
from tailer.stores.location import parse_location, path_text
from tailer.stores.wakeup import TimerWake

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = ["Changes", "changes"]

T = TypeVar("T")

_NAME: Final = "changes"
_Send = MemoryObjectSendStream[Sequence[pa.RecordBatch]]


def changes(
    table: str | os.PathLike[str],
    *,
    start: Place = "earliest",
    end: Place | None = "latest",
    columns: Iterable[str] = (),
    where: str | None = None,
    select: str | None = None,
    row_ids: bool = False,
    changes: str = "feed",
    carryovers: str = "drop",
    compute_updates: bool = False,
    key: Iterable[str] = (),
    skip_unchanged: bool = False,
    types: Iterable[str] = (),
    net: bool = False,
    allowed_roots: Iterable[str | os.PathLike[str]] = (),
    table_format: str | None = None,
    branch: str | None = None,
) -> "Changes":
    """Return the changes of a table, from `start` to `end`, both included; no I/O yet.

    Rows have the table's columns, then `_change_type`, `_commit_version` and `_commit_timestamp`, in commit order with
    deletes before inserts. `table`: its folder, its URI, or its name in AWS Glue. `start`: also `snapshot`, all rows as
    inserts and then the changes after them. `end`: None follows the table without an end. `columns`: the ones to read;
    all by default. `where`: a condition in SQL that rows must fulfil; an update that enters or leaves these rows is an
    insert or a delete. `select`: in place of `columns`, a list of SQL expressions. `row_ids`: add `_row_id` and
    `_row_commit_version`. `changes`, `carryovers`, `compute_updates`, `key`, `skip_unchanged`: as in a pipeline's
    configuration. `types`: those of the changes to read, such as `insert` and `update`. `net`: only the net change of
    each row in that range.
    `allowed_roots`: folders outside of the table that its files may be in. `table_format`: the name of a format, such
    as `delta`; None: a folder is looked at, and in a store its name. `branch`: of a table whose format has branches.

    Raises `ConfigError` for options that do not go together.
    """
    with brief_errors():
        location = parse_table(path_text(table, "table"), Path.cwd(), "table")
        given = {
            "columns": _names("columns", columns),
            "where": where,
            "select": select,
            "row_ids": row_ids,
            "changes": changes,
            "carryovers": carryovers,
            "compute_updates": compute_updates,
            "key": _names("key", key),
            "skip_unchanged": skip_unchanged,
            "types": _names("types", types),
            "net": net,
            "table_format": table_format,
            "branch": branch,
        }
        for fault in faults_of(given, RangeOptions):
            raise fault
        read = msgspec.convert(given, RangeOptions)
        begin, until = Start.at(start), None if end is None else Start.at(end, "end")
        for fault in read.faults(lambda option: option.replace(" = true", "=True")):
            raise fault
        read.check_range(begin, until)
        roots = tuple(
            parse_location(path_text(root, "allowed_roots"), Path.cwd(), "allowed_roots")
            for root in _names("allowed_roots", allowed_roots)
        )
        return Changes(TableRef(location, table_format, branch, roots).checked(), begin, until, read)


def _names(option: str, names: Iterable[T]) -> tuple[T, ...]:
    if isinstance(names, str):
        raise ConfigError(option, f"{names!r} is one string", f"Give a list of names: {option}=[{names!r}].")
    if not isinstance(names, Iterable):
        raise ConfigError(option, "must be a list of text", f'Give a list of names: {option}=["id"].')
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one table between two places. Made by `changes`.

    Iterate it, with `for` or `async for`, for `pyarrow.RecordBatch`es. A batch has rows of one version, with the
    columns of that time. `to_arrow`, `to_pandas` and `to_polars` give all rows at once, in one schema.

    Iterating raises `TailerError`: its text names what is wrong, its `hint` the next step.
    """

    table: TableRef
    start: Start
    end: Start | None
    read: RangeOptions

    def __iter__(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the batches in commit order."""
        batches = self._read([])
        _open.add(batches)
        return batches

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the batches in commit order, without blocking the event loop."""
        batches = iter(self)
        with brief_errors():
            try:
                while (batch := await to_thread.run_sync(next, batches, None)) is not None:
                    yield batch
            finally:
                await to_thread.run_sync(batches.close)

    def to_arrow(self) -> pa.Table:
        """Read everything into one table, whose columns are those of all batches by name.

        Raises `SchemaChanged` where a column has two types without a common one.
        """
        schemas: list[pa.Schema] = []
        with brief_errors():
            batches = list(self._read(schemas))
            try:
                # The columns of all batches, or of the table, in one order with the metadata columns last.
                metadata = output_schema(pa.schema([]))
                shapes = [batch.schema for batch in reversed(batches)] or schemas
                own = [[column for column in schema if column.name not in metadata.names] for schema in shapes]
                schema = pa.unify_schemas([*map(pa.schema, own), metadata], promote_options="permissive")
                tables = [schema.empty_table(), *(pa.Table.from_batches([batch]) for batch in batches)]
                return pa.concat_tables(tables, promote_options="permissive").select(schema.names)
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                last = int(batches[-1]["_commit_version"][-1].as_py()) if batches else 0
                raise SchemaChanged(
                    self.table.location, last, f"its rows do not fit into one table: {error}"
                ) from error

    def to_pandas(self) -> "pd.DataFrame":
        """Read everything into a pandas DataFrame with Arrow types. Needs pandas; raises as `to_arrow` does."""
        with brief_errors():
            try:
                import pandas as pd  # noqa: PLC0415 - the caller's choice, not a dependency
            except ImportError as error:
                raise _not_installed("to_pandas", "pandas", error) from error

        return self.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)

    def to_polars(self) -> "pl.DataFrame":
        """Read everything into a Polars DataFrame. Needs Polars; raises as `to_arrow` does."""
        with brief_errors():
            try:
                import polars as pl  # noqa: PLC0415 - the caller's choice, not a dependency
            except ImportError as error:
                raise _not_installed("to_polars", "polars", error) from error

        frame = pl.from_arrow(self.to_arrow())
        assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
        return frame

    def _read(self, schemas: list[pa.Schema]) -> Generator[pa.RecordBatch, None, None]:
        """Yield the batches; `schemas` gets the columns of each transaction, which need not have a row."""
        with brief_errors(), start_blocking_portal() as portal:
            send, receive = create_memory_object_stream[Sequence[pa.RecordBatch]](0)
            delivery = portal.start_task_soon(self._deliver, send, schemas)
            try:
                while batches := portal.call(_next, receive):
                    yield from batches
                delivery.result()
            finally:
                delivery.cancel()
                portal.call(receive.aclose)

    async def _deliver(self, send: _Send, schemas: list[pa.Schema]) -> None:
        async with send:
            policy, rules = self.read.policy(), self.read.rules()
            table = (await self.table.located()).open(policy=policy)
            files, sink = open_files(), _BatchSink(send, schemas)
            start, end = self.start, self.end
            engine: AbstractAsyncContextManager[Engine] = nullcontext(
                ChangelogEngine(LocalEngine(files=files), rules, _unreported, files)
            )
            if self.read.net:
                assert end is not None, "checked by changes"
                versions = range((await table.resolve(start)).version, await table.resolve_end(end) + 1)
                if not versions and end.kind is StartKind.LATEST:
                    columns_before = await table.seek(versions.start)
                    columns = policy.shape_schema(columns_before, table.uri, versions.start)
                    schemas.extend([] if columns is None else [output_schema(columns)])
                    return
                start, end = (Start(StartKind.VERSION, version) for version in (versions.start, versions.stop - 1))
                latest = await table.latest()
                if versions.stop - 1 > latest:
                    reason = f"version {versions.stop - 1} does not exist"
                    raise ConfigError("end", reason, f"The latest is {latest}.")
                local = LocalEngine(files=files)
                engine = net_changes(table, versions, local, rules, policy.shape, _unreported, files)
            wake = table.make_wake() if end is None else TimerWake()
            async with engine as running:
                await row_pipeline(_NAME, table, sink, running, wake, start, end, policy).run()


# Iterators that somebody holds. The interpreter frees them at its end, when their threads have stopped for good.
_open: Final[WeakSet[Generator[pa.RecordBatch, None, None]]] = WeakSet()


@atexit.register
def _close_all() -> None:
    for batches in list(_open):
        with suppress(ValueError):  # a thread is in it
            batches.close()


async def _next(receive: MemoryObjectReceiveStream[Sequence[pa.RecordBatch]]) -> Sequence[pa.RecordBatch]:
    try:
        return await receive.receive()
    except EndOfStream:
        return ()


def _not_installed(method: str, library: str, error: ImportError) -> ConfigError:
    return ConfigError(method, f"needs {library}: {error}", how_to_install(package=library))


def _unreported(plan: ChangePlan, counts: ChangelogCounts) -> None:
    """Drop the counts: the metrics are the daemon's."""


class _BatchSink(Sink):
    """A `Sink` that hands batches to a reader. Its progress is the last row handed over, so a retry repeats none."""

    name = _NAME
    splits_versions: Final = True
    splits_snapshots: Final = True

    def __init__(self, send: _Send, schemas: list[pa.Schema]) -> None:
        self._send = send
        self._schemas = schemas
        self._progress: dict[str, Progress] = {}

    @override
    async def progress(self, app_id: str) -> Progress | None:
        return self._progress.get(app_id)

    @override
    async def has_delivered(self, pipeline: str) -> bool:
        return bool(self._progress)

    @override
    async def reset(self, progress: Progress) -> None:
        self._progress[progress.app_id] = progress

    @asynccontextmanager
    @override
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        self._schemas.append(schema)
        yield _BatchTransaction(self._send, app_id, self._progress)

    async def aclose(self) -> None:
        """See `Sink.aclose`."""


class _BatchTransaction(SinkTransaction):
    writes_together = True

    def __init__(self, send: _Send, app_id: str, progress: dict[str, Progress]) -> None:
        self._send = send
        self._app_id = app_id
        self._progress = progress

    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        versions = [list(group) for _, group in groupby(batches, attrgetter("version"))]
        await self._send.send([joined_rows(own) for own in versions])
        last = batches[-1]
        self._progress[self._app_id] = Progress(self._app_id, Position(last.version, last.task, last.last_row))

    async def announce(self, event: ControlEvent) -> None:
        """Say nothing: the next batch has the new columns."""

    async def commit(self, progress: Progress) -> None:
        self._progress[progress.app_id] = progress
