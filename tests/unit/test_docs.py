"""The generated pages of `docs/` match the code."""

import pytest

from tests.generate_docs import DOCS, PAGES, SECTIONS, descriptions, settings


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_gives(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run python -m tests.generate_docs"


@pytest.mark.parametrize("kind", [kind for _, _, kind in SECTIONS])
def test_every_setting_is_described(kind: type) -> None:
    texts = descriptions(kind)
    assert not [name for name, *_ in settings(kind) if not texts[name]]
