"""One stream of rows for delta-rs, so that the memory of a write does not depend on the size of values.

delta-rs divides the rows of a write among as many streams as the thread that calls it may use processors. Each stream
joins batches to 8,192 rows, which are gigabytes if values are large (invariant 7). No option of delta-rs changes that.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["rows_in_one_stream"]


@contextmanager
def rows_in_one_stream() -> Iterator[None]:
    """Let this thread use one processor in the block; other threads of delta-rs still use all.

    Without effect where the system cannot do that.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, {random.choice(sorted(allowed))})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
