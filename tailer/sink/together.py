"""Small batches, handed to a sink together: a version may have thousands of files with a row each, and a backlog
thousands of small versions.

The rows of each file are a batch of their own. To encode and write each by itself costs far more than to read it.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tailer.events import ChangeBatch

__all__ = ["WritesTogether", "write_together"]


class _Writes(Protocol):
    async def write(self, batch: ChangeBatch) -> None: ...


@runtime_checkable
class WritesTogether(Protocol):
    """The optional side of a `SinkTransaction` or an `AtLeastOnceSink` that takes several small batches in one step."""

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        """Take batches as `write` takes one after the other. Raises and is cancelled as `write`.

        There are at least two. They follow each other and have one schema. Their versions and tasks may differ. After
        `SinkRejected`, an `AtLeastOnceSink` gets those of several versions again, one version at a time: take none of
        them, or rows come twice.
        """
        ...


async def write_together(target: _Writes, batches: Sequence[ChangeBatch]) -> None:
    """Write batches in one step if `target` can, otherwise one after the other."""
    if len(batches) > 1 and isinstance(target, WritesTogether):
        await target.write_all(batches)
    else:
        for batch in batches:
            await target.write(batch)
