"""Tags: names of versions, of the main history or of a branch. A tagged version is not cleaned up."""

from dataclasses import dataclass

from tailer.errors import ConfigError, LogCorrupt
from tailer.formats.lance.refs.branches import MAIN
from tailer.formats.lance.refs.ref_files import number_of, read_ref
from tailer.stores.port import ObjectStore

__all__ = ["Tag", "read_tag"]


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag of a version. `branch`: None for the main one."""

    name: str
    branch: str | None
    version: int


async def read_tag(store: ObjectStore, name: str, branch: str | None, where: str) -> Tag:
    """Read a tag of the dataset at the root of `store`, which must be one of `branch` (None: the main one).

    Raises `ConfigError` naming `where`, `LogCorrupt`.
    """
    found = await read_ref(store, "tags", name, where)
    own = found.get("branch")
    if not isinstance(own, str | None):
        raise LogCorrupt(store.uri, f"_refs, {name}", "branch is not a name")
    tag = Tag(name, None if own == MAIN else own, number_of(found, "version", store, name))
    if tag.branch != branch:
        reason = f"{name!r} is a tag of the branch {tag.branch or MAIN}"
        raise ConfigError(where, reason, f"Follow that branch: branch = {tag.branch or MAIN!r}.")
    return tag
