"""Variants and their encodings, drawn by hypothesis."""

import json
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.support.variant.encoder import Layout, Scalar

__all__ = ["LAYOUTS", "NAMES", "TEXTS", "VALUES"]

NAMES = st.text(st.characters(codec="utf-8"), max_size=4)


def integers(number: int, bits: int) -> st.SearchStrategy[Scalar]:
    """Return integers of a type."""
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(lambda n: Scalar(number, n, str(n)))


def decimals(number: int, digits: int) -> st.SearchStrategy[Scalar]:
    """Return decimals of a type, of any scale."""

    def build(unscaled: int, scale: int) -> Scalar:
        text = format(Decimal(f"{unscaled}E-{scale}"), "f")
        return Scalar(number, f"{unscaled}E-{scale}", f'"{text}"')

    return st.builds(build, st.integers(-(10**digits) + 1, 10**digits - 1), st.integers(0, 38))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.one_of(
    st.sampled_from([Scalar(0, None, "null"), Scalar(1, True, "true"), Scalar(2, False, "false")]),
    integers(3, 8),
    integers(4, 16),
    integers(5, 32),
    integers(6, 64),
    decimals(8, 9),
    decimals(9, 18),
    decimals(10, 38),
    TEXTS.map(lambda text: Scalar(16, text, json.dumps(text, ensure_ascii=False))),
    TEXTS.filter(lambda text: len(text.encode()) < 64).map(
        lambda text: Scalar(16, text, json.dumps(text, ensure_ascii=False), short=True)
    ),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=20
)
LAYOUTS = st.lists(
    st.builds(Layout, st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=4
)
