"""Suggestions for unknown names."""

import pytest

from tailer.errors import did_you_mean


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("ID", ["id", "amount"], "Did you mean 'id'?"),
        ("amuont", ["id", "Amount"], "Did you mean 'Amount'?"),
        ("zzz", ["id", "amount"], ""),
        ("", ["id"], ""),
        ("id", [], ""),
    ],
)
def test_the_nearest_is_suggested(word: str, known: list[str], expected: str) -> None:
    assert did_you_mean(word, known) == expected
