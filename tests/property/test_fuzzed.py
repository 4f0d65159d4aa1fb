"""The kept inputs of the search for faults (`python -m tests.fuzz`), and all that it found, without atheris."""

import pytest

from tests.fuzz.lines import all_lines
from tests.fuzz.target import NAMES, corpus_of, find, found_of


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs(name: str) -> None:
    target = find(name)
    paths = [*sorted(corpus_of(name).iterdir()), *(sorted(found_of(name).iterdir()) if found_of(name).exists() else ())]
    assert paths
    for path in paths:
        target.run(path.read_bytes())
    assert all_lines(target.modules)  # a search counts the lines of these modules: they must be there
