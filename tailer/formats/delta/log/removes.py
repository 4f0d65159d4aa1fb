"""Fill in what `remove` actions leave out: partition values, row ids, and which file they remove.

The protocol lets a writer leave out a remove's partition values: Trino did so before 2024, Spark before 3.0. Spark
still leaves out those that are null. An add of the same path in the same commit has the same values; without one, they
are those of the add that put the file into the table.

A commit should not remove one path twice (PROTOCOL.md, "Add File and Remove File"). If one does, with two deletion
vectors, the removes name two logical files, and only the one that was in the table loses its rows.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from tailer.errors import ChangesUnavailable
from tailer.formats.delta.log.actions import AddFile, Commit, RemoveFile
from tailer.formats.delta.snapshot import Snapshot

__all__ = ["FileBefore", "FileKey", "FilesBefore", "complete", "file_key", "fill_from_adds", "incomplete"]

FileKey = tuple[str, str]
"""The key of a logical file: its path, and the unique id of its deletion vector, empty without one."""


@dataclass(frozen=True, slots=True)
class FileBefore:
    """A file before a commit. `is_live`: it is in the table. `add`: its own, else the newest of its path, else None."""

    is_live: bool
    add: AddFile | None


FilesBefore = Mapping[FileKey, FileBefore]


def file_key(file: AddFile | RemoveFile, path: str | None = None) -> FileKey:
    """Return the key of a file. `path`: its path, if not as the action spells it."""
    vector = file.deletion_vector
    return file.path if path is None else path, "" if vector is None else vector.unique_id


def fill_from_adds(commit: Commit, before: Snapshot, state: Snapshot) -> Commit:
    """Return `commit` with its removes filled in from its own adds of the same paths."""
    needed = _Needed.of(before)
    # After a change of the partitioning an add has values for other columns.
    if before.partition_names != state.partition_names or not any(map(needed.is_lacking, commit.removes)):
        return commit
    adds = {add.path: add for add in commit.adds}
    return replace(commit, removes=tuple(needed.filled(remove, adds.get(remove.path)) for remove in commit.removes))


def incomplete(commit: Commit, before: Snapshot) -> list[RemoveFile]:
    """Return the removes that leave something out, and so need the state `before` the commit."""
    needed, paths = _Needed.of(before), Counter(remove.path for remove in commit.removes)
    return [remove for remove in commit.removes if paths[remove.path] > 1 or needed.is_lacking(remove)]


def complete(commit: Commit, before: Snapshot, files: FilesBefore) -> Commit:
    """Return `commit` with its `incomplete` removes filled in from `files`, the files of the state `before` it.

    Raises `ChangesUnavailable` where `files` lacks a removed file, because the state is not known.
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
    """The needs of a remove: a value of each partition column, and row ids if the table tracks rows."""

    partitions: tuple[str, ...]
    is_tracked: bool

    @classmethod
    def of(cls, before: Snapshot) -> Self:
        return cls(before.partition_names, before.tracked_columns is not None)

    def is_lacking(self, remove: RemoveFile) -> bool:
        """Return whether `remove` leaves out something of that."""
        if self.is_tracked and None in (remove.base_row_id, remove.default_row_commit_version):
            return True
        values = remove.partition_values or {}
        return any(name not in values for name in self.partitions)

    def filled(self, remove: RemoveFile, add: AddFile | None) -> RemoveFile:
        """Return `remove`, with what it leaves out from `add`. A value that `add` leaves out, too, is null."""
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
