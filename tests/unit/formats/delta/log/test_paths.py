"""`locate`: the quick ways for usual paths, and for many at once, against the way for all."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.formats.delta.log.paths import locate, locate_all


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
        patch.setattr("tailer.formats.delta.log.paths._UNUSUAL", re.compile(""))
        assert located() == found


ESCAPED = st.lists(
    st.sampled_from(["a", "/", "%20", "%3A", "%25", "%2", "%3a", "%C3%A9", "é", ".", ":", "\n"]), max_size=5
)


@given(st.lists(ESCAPED.map("".join) | st.text("ab/.:%235A\0\n", max_size=8), max_size=4))
def test_paths_are_located_together_as_one_by_one(paths: list[str]) -> None:
    try:
        expected = [locate(path, "/data/t") for path in paths]
    except ValueError as error:
        with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
            locate_all(pa.array(paths, pa.string()), "/data/t")
    else:
        assert locate_all(pa.array(paths, pa.string()), "/data/t").to_pylist() == expected
