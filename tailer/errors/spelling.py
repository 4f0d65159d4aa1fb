"""Suggestions for unknown names, with the same wording for the command line, the configuration and columns."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` with the closest of `known`, ignoring case; empty where none is close."""
    folded = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), folded, n=1)
    return f"Did you mean {folded[near[0]]!r}?" if near else ""
