"""The folder of a target table: delta-rs opens and creates tables in it, on this machine or in an object store."""

import json
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import pyarrow as pa
from anyio import CancelScope, from_thread
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError, TableNotFoundError

from tailer.errors import ObjectNotFound, SinkError, SinkRejected, SinkUnavailable
from tailer.events import COMMIT_VERSION
from tailer.formats.delta.folders import holds_table, table_in_stores
from tailer.sink import Heartbeats
from tailer.stores.folders import CHOOSE_ANOTHER, creation_obstacle
from tailer.stores.port import OpenObject
from tailer.stores.stores import Stores
from tailer_sinks.access import store_errors
from tailer_sinks.delta.target import first_line, folder_refusal, is_permanent
from tailer_sinks.heartbeats import FileHeartbeats, StoreHeartbeats, heartbeat_name

__all__ = ["NOTE", "TargetFolder"]

T = TypeVar("T")

# The key under which other writers keep user metadata of a commit.
NOTE: Final = "userMetadata"

# What delta-rs needs for a store, with keys in it; None for a path of this machine.
Login = Mapping[str, str] | None

_HIDDEN: Final = (".", "_")
# The rights that a sink needs, by the scheme of its location.
_RIGHTS: Final = {
    "s3": "Allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket on the folder.",
    "gs": "Grant the role Storage Object User on the bucket.",
    "abfss": "Grant the role Storage Blob Data Contributor on the container.",
}
# A refusal for want of rights, as the servers of S3 and of Google, and those of Azure, name it.
_DENIALS: Final = (
    "AccessDenied",
    "AuthorizationFailure",
    "AuthorizationPermissionMismatch",
    "InsufficientAccountPermissions",
)


class _StoreTarget:
    """The folder `location` of the table in an object store; `sink`: the sink's name in errors. For worker threads.

    delta-rs has a client of its own. It gets the login of ours for each transaction, so that keys are renewed while the
    pipeline runs. Whether there is a table is asked through our store first, so that a wrong key, bucket or permission
    has the same error as everywhere.

    Methods raise `SinkUnavailable` and `SinkRejected`.
    """

    def __init__(self, sink: str, location: str, stores: Stores) -> None:
        self._sink = sink
        self._location = location
        self._stores = stores
        stores.check_for_delta_rs(location)
        self._store = stores.open_uploads(location)

    def denial_remedy(self, error: Exception) -> str | None:
        """Return the next step where an error of delta-rs is for want of rights; None for any other error."""
        is_denied = any(code in str(error) for code in _DENIALS)
        return _RIGHTS[self._location.partition(":")[0]] if is_denied else None

    def login(self) -> Mapping[str, str]:
        """Return the current settings for delta-rs, with keys in them."""
        with store_errors(self._sink):
            return self._stores.delta_rs_settings(self._location)

    def open_heartbeats(self, pipeline: str) -> Heartbeats:
        """Open the place for the heartbeats of a pipeline; no I/O."""
        return StoreHeartbeats(self._sink, self._store, heartbeat_name(pipeline))

    def holds_table(self) -> bool:
        """Return whether the folder has a log."""
        return self._wait(lambda: table_in_stores([self._store])) is not None

    def commit_ids(self, after: int, last: int) -> set[str]:
        """Return the ids in the commits after version `after`, up to `last`.

        delta-rs' own history keeps all threads of Python waiting for the store.
        """
        names = [f"_delta_log/{version:020d}.json" for version in range(after + 1, last + 1)]

        def ids(opened: OpenObject) -> set[str]:
            infos = [json.loads(line) for line in opened.file if line.startswith(b'{"commitInfo"')]
            return {str(info["commitInfo"].get("txnId")) for info in infos}

        return {commit_id for name in names for commit_id in self._wait(partial(self._store.scan, name, ids))}

    def transactions(self, name: str) -> list[str] | None:
        """Return the app ids of the `txn` actions in the commit `name`; None: there is no such commit."""

        async def scan() -> list[str] | None:
            try:
                return await self._store.scan(name, lambda opened: _app_ids(opened.file))
            except ObjectNotFound:
                return None

        return self._wait(scan)

    def refusal(self, adopt: bool) -> tuple[str, str] | None:
        """Explain why no table may be created here, and the next step. None: it may."""
        parents = self._stores.open_parents(self._location)
        if table := self._wait(lambda: table_in_stores([self._store, *parents])):
            if table == self._store.uri:
                raise SinkUnavailable(self._sink, f"{table}: another writer created the table meanwhile")
            reason = f"{self._location} is inside the Delta table {table}, whose VACUUM would delete it"
            return reason, "Choose a path outside of that folder."
        names = () if adopt else self._wait(lambda: self._store.names_below(""))
        entries = (name.partition("/")[0] for name in names)
        if entry := next((entry for entry in entries if entry and not entry.startswith(_HIDDEN)), None):
            reason = f"{self._location} is not empty (it holds {entry!r}), and not a table of lake-tailer"
            return reason, "Choose another path; or set adopt = true to write change rows there all the same."
        return None

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` in the event loop and wait for it.

        It is shielded: if the thread's task was cancelled before, anyio would neither cancel it nor let it go on. The
        store's own timeouts end it.
        """

        async def shielded() -> T:
            with CancelScope(shield=True):
                return await work()
            raise AssertionError("a shield swallows nothing")

        with store_errors(self._sink):
            return from_thread.run(shielded)


def _app_ids(commit: Iterable[bytes]) -> list[str]:
    """Return the app ids of the `txn` actions in the lines of a commit."""
    actions = [json.loads(line) for line in commit if b'"txn"' in line]
    return [str(action["txn"]["appId"]) for action in actions if "txn" in action]


class TargetFolder:
    """The folder `path`; `name`: the sink's name in errors. Blocking: for worker threads of anyio.

    Methods raise `SinkUnavailable` and `SinkRejected`.
    """

    def __init__(self, name: str, path: str) -> None:
        self._name = name
        self._path = path
        self._store: _StoreTarget | None = None

    def use_stores(self, stores: Stores) -> None:
        """Take the stores that the folder may be in; no I/O. Raises `ConfigError`."""
        self._store = _StoreTarget(self._name, self._path, stores) if "://" in self._path else None

    def open_heartbeats(self, pipeline: str) -> Heartbeats:
        """Open the place for the heartbeats of a pipeline, beside the log; no I/O.

        Commits without rows would do, too, and would be tens of thousands of versions a day, which every reader lists.
        """
        if self._store is None:
            self.use_stores(Stores())
        if self._store is not None:
            return self._store.open_heartbeats(pipeline)
        return FileHeartbeats(self._name, Path(self._path) / heartbeat_name(pipeline))

    def login(self) -> Login:
        """Return keys that are valid now."""
        if self._store is None:
            self.use_stores(Stores())
        return None if self._store is None else self._store.login()

    def open(self, login: Login) -> DeltaTable | None:
        """Open the table at its newest version. None: there is none."""
        if self._store is not None and not self._store.holds_table():
            return None
        if os.path.isfile(self._path):  # noqa: PTH113 - Path.is_file raises where a folder above cannot be entered
            self.reject(f"{self._path} is a file, not a folder", "Give the folder of a Delta table, or a new one.")
        try:
            with suppress(TableNotFoundError):
                return DeltaTable(self._path, storage_options=_plain(login))
            if self._store is None and not holds_table(Path(self._path)):
                return None
            # It was created in between, or its log is broken.
            return DeltaTable(self._path, storage_options=_plain(login))
        except TableNotFoundError as error:
            self.reject(f"{self._path}: {first_line(error)}", "Restore the table's log, or choose another path.")
        except Exception as error:
            raise self.failure(error) from error

    def at(self, version: int, login: Login) -> DeltaTable:
        """Open the table at a version. Raises delta-rs' errors."""
        return DeltaTable(self._path, version, storage_options=_plain(login))

    def create(
        self, schema: Schema, partition_by: list[str], login: Login, properties: Mapping[str, str] | None = None
    ) -> DeltaTable:
        """Create the table with `properties`. Raises delta-rs' errors, also where it exists."""
        return DeltaTable.create(
            self._path,
            schema,
            mode="error",
            partition_by=partition_by,
            configuration=properties,
            storage_options=_plain(login),
            raise_if_key_not_exists=False,
        )

    def commit_ids(self, table: DeltaTable, after: int) -> set[str]:
        """Return the ids in the commits after version `after`. Raises delta-rs' errors, too."""
        last = table.version()
        if self._store is not None:
            return self._store.commit_ids(after, last)
        commits = table.history(last - after) if last > after else []
        return {str(commit.get(key)) for commit in commits for key in ("txnId", NOTE)}

    def transactions(self, version: int) -> list[str] | None:
        """Return the app ids of the `txn` actions in the commit of a version; None: it is not in the log any more."""
        name = f"_delta_log/{version:020d}.json"
        if self._store is not None:
            return self._store.transactions(name)
        try:
            with (Path(self._path) / name).open("rb") as commit:
                return _app_ids(commit)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.failure(error) from error

    def check_free(self, adopt: bool) -> None:
        """Refuse to create a table in a folder with foreign files."""
        try:
            store = self._store
            refusal = folder_refusal(self._path, adopt) if store is None else store.refusal(adopt)
        except OSError as error:
            raise self.failure(error) from error
        if refusal is not None:
            self.reject(*refusal)

    def check_nothing_after(self, table: DeltaTable, version: int) -> None:
        """Refuse a table that holds change rows of versions after `version`."""
        try:
            rows = pa.RecordBatchReader.from_stream(table.scan([COMMIT_VERSION], f"{COMMIT_VERSION} > {version}"))
            is_there = any(batch.num_rows for batch in rows)
        except Exception as error:
            raise self.failure(error) from error
        if is_there:
            reason = f"{self._path} holds rows of versions after {version}, which would be duplicated"
            self.reject(reason, f"DELETE FROM delta.`{self._path}` WHERE {COMMIT_VERSION} > {version}")

    def reject(self, reason: str, remedy: str) -> NoReturn:
        """Raise `SinkRejected`."""
        raise SinkRejected(self._name, reason, remedy)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Make our errors from those of delta-rs. An open table still reads its log, such as for each `txn`."""
        try:
            yield
        except (DeltaError, OSError) as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> SinkError:
        """Make our error from one of delta-rs or of the system."""
        reason = first_line(error)
        if self._store is None and (obstacle := creation_obstacle(Path(self._path))):
            return SinkRejected(self._name, f"{self._path}: {obstacle}", CHOOSE_ANOTHER)
        if self._store is not None and (remedy := self._store.denial_remedy(error)):
            return SinkRejected(self._name, f"{self._path}: access is denied: {reason}", remedy)
        if isinstance(error, SchemaMismatchError | DeltaProtocolError) or is_permanent(error):
            return SinkRejected(self._name, f"{self._path}: {reason}", "Change the target table, or choose a new path.")
        return SinkUnavailable(self._name, f"{self._path}: {reason}")


def _plain(login: Login) -> dict[str, str] | None:
    return None if login is None else dict(login)
