"""One commit file, read and planned in one call of a worker thread.

A commit that does not say everything about the files that it removes is planned in a second step, with what the state
before it says.

Commit files do not change, and most writers create them atomically. With a writer that does not, the first lines alone
are a valid commit too. Only the file's growth reveals that it was incomplete: `CommitFile` is the identity of the file
that was read.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import BinaryIO, Final, cast

from tailer.errors import ChangesUnavailable, LogCorrupt, StorageError
from tailer.formats.delta.changes import plan_changes, reads_data_files
from tailer.formats.delta.log.actions import CdcFile, Commit, RemoveFile, scan_commit
from tailer.formats.delta.log.listing import commit_name
from tailer.formats.delta.log.removes import FilesBefore, complete, fill_from_adds, incomplete
from tailer.formats.delta.snapshot import Snapshot
from tailer.plan import ChangePlan
from tailer.stores.port import BlockingScans, ObjectMeta, ObjectStore, OpenObject

__all__ = ["CommitFile", "CommitPlanner", "PlannedCommit", "read_whole"]

_CHUNK_BYTES: Final = 2**20
_TOGETHER_BYTES: Final = 2**18  # of commits that are planned in one call of a thread


@dataclass(frozen=True, slots=True)
class CommitFile:
    """Identity of a commit file: its time and length, and the digest of its content where that was read."""

    meta: ObjectMeta
    digest: bytes | None

    async def is_still(self, store: ObjectStore) -> bool:
        """Return whether the file in the store is this one. Raises `ObjectNotFound`, `StorageUnavailable`."""
        meta = await store.stat(self.meta.name)
        if meta == self.meta:
            return True
        if self.digest is None:
            return False
        file, _ = await store.scan(self.meta.name, read_whole)
        return file.digest == self.digest


class CommitContent:
    """Digesting reader of a commit file. `is_ended`: whether the last line read ends with a newline."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = blake2b(digest_size=16)
        self.is_ended = False

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if data:
            self._digest.update(data)
            self.is_ended = data.endswith(b"\n")
        return data

    def read_all(self) -> None:
        """Read the rest of the file."""
        while self.read(_CHUNK_BYTES):
            pass

    @property
    def digest(self) -> bytes:
        """Digest of the bytes read so far."""
        return self._digest.digest()


def read_whole(opened: OpenObject) -> tuple[CommitFile, bool]:
    """Read an open commit file; return its identity and whether its last line ends with a newline."""
    content = CommitContent(opened.file)
    content.read_all()
    return CommitFile(opened.meta, content.digest), content.is_ended


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """Outcome of reading a commit file. `is_ended`: whether its last line ends with a newline.

    `predecessor`: the file of the commit before it, as it was found afterwards; None: not looked for, or not found.
    `commit`: set where the state before must say more about the files of `incomplete`, before there is a plan.
    """

    file: CommitFile
    is_ended: bool
    error: LogCorrupt | None
    state: Snapshot | None = None
    plan: ChangePlan | None = None
    predecessor: ObjectMeta | None = None
    commit: Commit | None = None
    incomplete: Sequence[RemoveFile] = ()

    @property
    def outcome(self) -> tuple[Snapshot, ChangePlan]:
        """State and plan. Raises the error that prevented them."""
        if self.error is not None:
            raise self.error
        assert self.state is not None
        assert self.plan is not None
        return self.state, self.plan


@dataclass(frozen=True, slots=True)
class CommitPlanner:
    """Planner of the commit of `version` of the table at `uri`.

    `before`: the state it applies to; None for the table's first commit. `is_early`: whether that already includes the
    commit's metadata. `managed`: whether a catalog manages the table. `allowed_roots`: as for `plan_changes`. `stat`:
    looks for the file of the commit before; None: nobody asks for it. `statistics`: whether tasks have those of files.
    `compare`: as for `plan_changes`.
    """

    uri: str
    version: int
    before: Snapshot | None
    is_early: bool
    managed: bool
    allowed_roots: tuple[str, ...]
    stat: Callable[[], ObjectMeta] | None = None
    statistics: bool = False
    compare: bool = False

    def plan(self, opened: OpenObject) -> PlannedCommit:
        """Read the commit file to its end, also a damaged one, and plan it.

        Raises `ChangesUnavailable`, `FileOutsideTable`, `UnsupportedFeature`.
        """
        content = CommitContent(opened.file)
        state: Snapshot | None = None
        plan: ChangePlan | None = None
        wanted: list[RemoveFile] = []
        try:
            commit, state = self._read(content, opened.meta)
            if commit.removes and self.before is not None and reads_data_files(commit, self.compare):
                commit = fill_from_adds(commit, self.before, state)
                wanted = incomplete(commit, self.before)
            if not wanted:
                plan = plan_changes(commit, self.before, state, self.uri, self.allowed_roots, compare=self.compare)
        except LogCorrupt as error:
            content.read_all()
            return PlannedCommit(CommitFile(opened.meta, content.digest), content.is_ended, error)
        file, predecessor = CommitFile(opened.meta, content.digest), None
        if self.stat is not None:
            with suppress(StorageError):  # asked for again, and reported then
                predecessor = self.stat()
        rest = commit if wanted else None
        return PlannedCommit(file, content.is_ended, None, state, plan, predecessor, rest, wanted)

    def plan_in_turn(self, reads: BlockingScans, read: CommitFile | None, most: int) -> list[PlannedCommit]:
        """Plan this commit and the next ones, at most `most`: those that are whole and follow the ones before.

        `read`: the file of the commit before. Stop where more must be known, and where the files are no longer small.
        """
        commits: list[PlannedCommit] = []
        planner, size_bytes = self, 0
        with suppress(Exception):  # raised again when the version is the first
            while len(commits) < most and size_bytes < _TOGETHER_BYTES:
                planned = reads.scan_now(commit_name(planner.version), planner.plan)
                follows = read is None or planned.predecessor == read.meta
                if planned.plan is None or not planned.is_ended or not follows:
                    break
                commits.append(planned)
                read, size_bytes = planned.file, size_bytes + planned.file.meta.size_bytes
                stat, version = partial(reads.stat_now, read.meta.name), planner.version + 1
                planner = replace(self, version=version, before=planned.state, is_early=False, stat=stat)
        return commits

    def complete(self, planned: PlannedCommit, files: FilesBefore) -> PlannedCommit:
        """Plan a commit with what the state before it says of the files that it lacks.

        Raises as `plan` does, and `LogCorrupt`.
        """
        assert planned.commit is not None
        assert planned.state is not None
        assert self.before is not None
        commit = complete(planned.commit, self.before, files)
        plan = plan_changes(commit, self.before, planned.state, self.uri, self.allowed_roots, compare=self.compare)
        return replace(planned, plan=plan, commit=None, incomplete=())

    def _read(self, content: CommitContent, meta: ObjectMeta) -> tuple[Commit, Snapshot]:
        file = cast("BinaryIO", content)
        commit = scan_commit(
            file,
            self.uri,
            meta.name,
            self.version,
            meta.modified_ms,
            keep=lambda action: isinstance(action, CdcFile) or action.data_change,
            statistics=self.statistics,
        )
        if self.before is None:
            info = commit.info
            dated_ms = info.in_commit_timestamp if info is not None else None
            times = [commit.modified_ms]
            state = Snapshot.begin(
                self.uri, commit.version, commit.protocol, commit.metadata, times, dated_ms, self.managed
            )
        else:
            state = self.before.advance(commit)
        if self.is_early and commit.removes:
            reason = "it deletes rows and may change the schema, and the log no longer has the schema before it"
            raise ChangesUnavailable(self.uri, commit.version, reason)
        return commit, state
