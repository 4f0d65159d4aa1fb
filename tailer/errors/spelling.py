"""A suggestion for a name that is not known, in one wording for the command line, the configuration and columns."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?` with the nearest of `known`, whatever its letter case; empty where nothing is near."""
    folded = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), folded, n=1)
    return f"Did you mean {folded[near[0]]!r}?" if near else ""
