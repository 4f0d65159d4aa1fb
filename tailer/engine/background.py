"""A task group for background work of a block: it ends with the block and does not wrap the block's errors.

anyio's own task group wraps an error raised in its block into an `ExceptionGroup`. Here the error passes unchanged.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

__all__ = ["background"]


@asynccontextmanager
async def background() -> AsyncIterator[TaskGroup]:
    """Open a task group whose tasks are cancelled when the block is left.

    An error in a background task cancels the block and is raised as an `ExceptionGroup`.
    """
    group = anyio.create_task_group()
    await group.__aenter__()
    try:
        yield group
    finally:
        group.cancel_scope.cancel()
        await group.__aexit__(None, None, None)
