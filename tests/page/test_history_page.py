"""The page of `tailer history --html` in Chromium: on a phone, and for a screen reader."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tailer.cli.history.page import page_of
from tailer.cli.history.periods import By, periods_of
from tailer.formats.inspection import CommitSummary, RowCounts

COMMITS = [
    CommitSummary(
        version,
        1_764_000_000_000 + version * 1000,
        "WRITE",
        "Apache-Spark/4.0.0 Delta-Lake/4.0.0",
        RowCounts(inserted, 1, 0),
        6700,
    )
    for version, inserted in enumerate([100_000, 1, 1])
]


@pytest.fixture
def address(tmp_path: Path) -> str:
    """A page of three commits, of which one changed many more rows than the others."""
    file = tmp_path / "history.html"
    file.write_text(page_of("s3://lake/shop/orders", periods_of(COMMITS, By.COMMIT), None))
    return file.as_uri()


@contextmanager
def shown(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """Open the page."""
    context = browser.new_context(**options)
    opened = context.new_page()
    opened.goto(address)
    yield opened
    context.close()


def test_on_a_phone(browser: Browser, address: str) -> None:
    """Nothing is cut off: each commit is a card, with the name of each column beside its value."""
    with shown(browser, address, viewport={"width": 360, "height": 740}, is_mobile=True) as opened:
        assert opened.evaluate("document.documentElement.scrollWidth") == 360
        expect(opened.get_by_role("columnheader", name="inserted")).not_to_be_in_viewport()
        card = opened.locator("tbody tr").nth(0)
        assert card.evaluate("(card) => card.getBoundingClientRect().height") < 250
        expect(card).to_contain_text("Apache-Spark/4.0.0")


def test_a_screen_reader_finds_names_and_no_signs(browser: Browser, address: str) -> None:
    with shown(browser, address) as opened:
        expect(opened.get_by_role("table", name="Commits")).to_be_visible()
        expect(opened.get_by_role("columnheader")).to_have_count(8)
        expect(opened.get_by_role("img", name="Changed rows: at most 100,001")).to_be_visible()
        assert "■" not in opened.locator("body").aria_snapshot()


def test_few_rows_beside_many_are_seen(browser: Browser, address: str) -> None:
    with shown(browser, address) as opened:
        heights = opened.locator("figure rect").evaluate_all(
            "(all) => all.map((e) => e.getBoundingClientRect().height)"
        )
        assert len(heights) == 6
        assert min(heights) > 1.5
