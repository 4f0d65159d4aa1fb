"""Facts that `remove` actions leave out: partition values, row ids, and which file they remove.

The protocol lets a writer leave out a remove's partition values: Trino did so before 2024, Spark before 3.0. Spark
still leaves out those that are null. An add of the same path in the same commit has the same values; otherwise the add
that made the file live has them.

A commit should not remove one path twice (PROTOCOL.md, "Add File and Remove File"). Where one does, with two deletion
vectors, each remove is of another logical file, and rows go only where that file was live.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from tailer.delta.log.actions import AddFile, Commit, RemoveFile
from tailer.delta.snapshot import Snapshot
from tailer.errors import ChangesUnavailable

__all__ = ["FileBefore", "FileKey", "FilesBefore", "complete", "file_key", "fill_from_adds", "incomplete"]

FileKey = tuple[str, str]
"""The key of a logical file: its path, and the unique id of its deletion vector, empty without one."""


@dataclass(frozen=True, slots=True)
class FileBefore:
    """A file in the state before a commit. `add`: its own, else the newest of its path; None: none."""

    is_live: bool
    add: AddFile | None


FilesBefore = Mapping[FileKey, FileBefore]


def file_key(file: AddFile | RemoveFile, path: str | None = None) -> FileKey:
    """Return the key of a file. `path`: in place of the path as written."""
    vector = file.deletion_vector
    return file.path if path is None else path, "" if vector is None else vector.unique_id


def fill_from_adds(commit: Commit, before: Snapshot, state: Snapshot) -> Commit:
    """Return `commit` with what its own adds say of the files that it removes."""
    needed = _Needed.of(before)
    # After a change of the partitioning an add has values for other columns.
    if before.partition_names != state.partition_names or not any(map(needed.is_lacking, commit.removes)):
        return commit
    adds = {add.path: add for add in commit.adds}
    return replace(commit, removes=tuple(needed.filled(remove, adds.get(remove.path)) for remove in commit.removes))


def incomplete(commit: Commit, before: Snapshot) -> list[RemoveFile]:
    """Return the removes that do not say everything, and so need the state `before` the commit."""
    needed, paths = _Needed.of(before), Counter(remove.path for remove in commit.removes)
    return [remove for remove in commit.removes if paths[remove.path] > 1 or needed.is_lacking(remove)]


def complete(commit: Commit, before: Snapshot, files: FilesBefore) -> Commit:
    """Return `commit` with what `files`, from the state `before` it, say of the removes that are `incomplete`.

    Raises `ChangesUnavailable` where they lack one of these: the state is not known.
    """
    needed, paths = _Needed.of(before), Counter(remove.path for remove in commit.removes)
    removes: list[RemoveFile] = []
    for remove in commit.removes:
        is_one_of_many = paths[remove.path] > 1
        if not (is_one_of_many or needed.is_lacking(remove)):
            removes.append(remove)
            continue
        file = files.get(file_key(remove))
        if file is None:
            lacks = "is one of several of its path" if is_one_of_many else "lacks partition values or row ids"
            reason = f"the remove of {remove.path} {lacks}, and the state before it is not in the log"
            raise ChangesUnavailable(before.table, commit.version, reason)
        if file.is_live or not is_one_of_many:
            removes.append(needed.filled(remove, file.add))
    return replace(commit, removes=tuple(removes))


@dataclass(frozen=True, slots=True)
class _Needed:
    """The needs of each removed file: a value of each partition column, and row ids if rows are tracked."""

    partitions: tuple[str, ...]
    is_tracked: bool

    @classmethod
    def of(cls, before: Snapshot) -> Self:
        return cls(before.partition_names, before.tracked_columns is not None)

    def is_lacking(self, remove: RemoveFile) -> bool:
        """Return whether `remove` leaves some of it out."""
        if self.is_tracked and None in (remove.base_row_id, remove.default_row_commit_version):
            return True
        values = remove.partition_values or {}
        return any(name not in values for name in self.partitions)

    def filled(self, remove: RemoveFile, add: AddFile | None) -> RemoveFile:
        """Return `remove` with what it leaves out and `add` has. An add leaves out values that are null."""
        if add is None or not self.is_lacking(remove):
            return remove
        values = dict.fromkeys(self.partitions) | add.partition_values | (remove.partition_values or {})
        base, version = remove.base_row_id, remove.default_row_commit_version
        return msgspec.structs.replace(
            remove,
            partition_values=values,
            size=add.size if remove.size is None else remove.size,
            base_row_id=add.base_row_id if base is None else base,
            default_row_commit_version=add.default_row_commit_version if version is None else version,
        )
