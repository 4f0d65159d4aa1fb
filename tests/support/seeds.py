"""Random seeds of `make nightly`: new in each run, and printed, so that a failing run can be repeated."""

import os
import random

__all__ = ["first_seed"]


def first_seed() -> int:
    """Return a new seed, or the one in LAKE_TAILER_SEED, and print how to have it again."""
    seed = int(os.environ.get("LAKE_TAILER_SEED") or random.SystemRandom().randrange(2**31))
    print(f"LAKE_TAILER_SEED={seed}")
    return seed
