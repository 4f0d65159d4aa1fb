"""`locate`: the quick way for usual paths against the way for all."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.delta.log.paths import locate


@given(st.text("ab/.:%2F\0\n", max_size=12))
def test_usual_paths_are_located_as_all_others(path: str) -> None:
    """Most paths are joined with the root without a closer look."""

    def located() -> str | None:
        try:
            return locate(path, "/data/t")
        except ValueError:
            return None

    found = located()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailer.delta.log.paths._UNUSUAL", re.compile(""))
        assert located() == found
