"""The generated pages match the code, and all pages name modules that exist."""

import re

import pytest

from tests.generate_docs import PAGES, SECTIONS, descriptions, settings
from tests.house import ROOT
from tests.nightly import repetitions
from tests.support.cases import cases


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_gives(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](), "run python -m tests.generate_docs"


def test_modules_that_pages_name_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"`((?:tailer|sinks|tests)/[\w/]+\.py)\b", page.read_text())}
    assert not sorted(name for name in named if "KIND" not in name and not (ROOT / name).exists())


@cases("kind", [kind for _, _, kind in SECTIONS])
def test_every_setting_is_described(kind: type) -> None:
    texts = descriptions(kind)
    assert not [name for name, *_ in settings(kind) if not texts[name]]


def test_what_only_nightly_runs_is_shown_on_every_landing() -> None:
    silent = [module.module for module in repetitions() if module.whole and not module.shown]
    assert not silent, "say in the docstring what shows the same on every landing: `On every landing: ...`"
    assert not [module.module for module in repetitions() if not (module.whole or module.cases or module.sampled)]
