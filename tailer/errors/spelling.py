"""Suggestions for unknown names, with the same wording for the command line, the configuration and columns."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

__all__ = ["did_you_mean"]

_SEPARATORS: Final = str.maketrans("", "", "-_. ")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` with the closest of `names`, ignoring case and separators; empty: none is close."""
    folded = {_fold(name): name for name in names}
    near = get_close_matches(_fold(word), folded, n=1)
    return f"Did you mean {folded[near[0]]!r}?" if near else ""


def _fold(name: str) -> str:
    return name.lower().translate(_SEPARATORS)
