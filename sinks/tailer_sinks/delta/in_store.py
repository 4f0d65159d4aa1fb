"""A target of the `delta` sink in an object store: what delta-rs needs to reach it, and the checks through our store.

delta-rs has a client of its own. It gets the login of ours for each transaction, so that keys are renewed while the
pipeline runs. Whether there is a table is asked through our store first, so that a wrong key, bucket or permission has
the same error as everywhere.
"""

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from anyio import CancelScope, from_thread

from tailer.errors import ObjectNotFound, SinkUnavailable
from tailer.formats.delta.folders import table_in_stores
from tailer.sink import Heartbeats
from tailer.stores.port import OpenObject
from tailer.stores.stores import Stores
from tailer_sinks.access import store_errors
from tailer_sinks.heartbeats import StoreHeartbeats, heartbeat_name

__all__ = ["StoreTarget", "app_ids"]

T = TypeVar("T")

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


class StoreTarget:
    """The folder `location` of the table; `sink`: the sink's name in errors. Blocking: for worker threads of anyio.

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
        return {commit_id for name in names for commit_id in self._wait(partial(self._store.scan, name, _ids))}

    def transactions(self, name: str) -> list[str] | None:
        """Return the app ids of the `txn` actions in the commit `name`; None: there is no such commit."""

        async def scan() -> list[str] | None:
            try:
                return await self._store.scan(name, lambda opened: app_ids(opened.file))
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


def app_ids(commit: Iterable[bytes]) -> list[str]:
    """Return the app ids of the `txn` actions in the lines of a commit."""
    actions = [json.loads(line) for line in commit if b'"txn"' in line]
    return [str(action["txn"]["appId"]) for action in actions if "txn" in action]


def _ids(opened: OpenObject) -> set[str]:
    """Return the ids in a commit's `commitInfo`."""
    infos = [json.loads(line) for line in opened.file if line.startswith(b'{"commitInfo"')]
    return {str(info["commitInfo"].get("txnId")) for info in infos}
