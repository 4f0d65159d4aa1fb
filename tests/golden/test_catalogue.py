"""The lists of `golden/README.md` and `property/README.md`: each table exists and has a test, each case has a test."""

import re
from pathlib import Path
from typing import Final

from tests.generate_cases import CASES
from tests.support.tables.golden import golden

TESTS: Final = Path(__file__).resolve().parents[1]


def tables() -> list[str]:
    """Return the names of all golden Delta tables."""
    return sorted(path.parent.name for path in golden("delta").glob("*/_delta_log"))


def section(title: str, page: str = "golden/README.md") -> str:
    """Return the text under a heading of the catalogue."""
    return (TESTS / page).read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_case_that_no_table_covers_has_one_test() -> None:
    named = re.findall(
        r"^\| [^|]+ \| `(test_\w+)` \|$", section("Cases no public table covers", "property/README.md"), re.MULTILINE
    )
    sources = [module.read_text() for module in CASES]
    defined = re.findall(r"^def (test_\w+)", "".join(sources), re.MULTILINE)
    assert len(named) == 28
    assert [defined.count(name) for name in named] == [1] * len(named)


def test_the_catalogue_lists_every_table_once_and_says_what_it_covers() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\S.*) \|$", section("Golden Delta tables"), re.MULTILINE)
    assert [name for name, _ in rows] == tables()


def test_every_table_is_read_by_a_test() -> None:
    modules = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    modules.append(TESTS / "support" / "tables" / "golden_feeds.py")
    text = "".join(path.read_text() for path in modules)
    assert [name for name in tables() if f'"{name}"' not in text] == []


def test_the_catalogue_says_which_answers_there_are() -> None:
    catalogue = section("Golden Delta tables")
    for name in tables():
        (covers,) = re.findall(rf"^\| `{re.escape(name)}` \| (\S.*) \|$", catalogue, re.MULTILINE)
        said = re.split(r"[;:]", covers)[0].split(", ")
        assert ("feed" in said) == golden("delta").joinpath(f"{name}.expected.json").exists(), name
        assert ("rows" in said) == golden("delta").joinpath(f"{name}.expected-snapshot").exists(), name
