"""A task group for work behind a block of code: it ends with the block, and leaves the block's errors as they are.

anyio's own task group wraps an error raised in its block into an `ExceptionGroup`; what happens in the block is not the
background's business, so here it passes untouched.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

__all__ = ["background"]


@asynccontextmanager
async def background() -> AsyncIterator[TaskGroup]:
    """A task group whose tasks are cancelled when the block is left.

    An error that a background task raises cancels the block and comes out as an `ExceptionGroup`.
    """
    group = anyio.create_task_group()
    await group.__aenter__()
    try:
        yield group
    finally:
        group.cancel_scope.cancel()
        await group.__aexit__(None, None, None)
