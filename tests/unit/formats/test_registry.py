"""Tests for `tailer.formats.registry`."""

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from tailer.errors import ConfigError
from tailer.formats import registry
from tailer.formats.delta.format import DELTA
from tailer.formats.lance.format import LANCE
from tailer.formats.registry import check_choices, find_format, format_of, named_format
from tailer.stores.local import LocalStore

ROOT = Path(__file__).resolve().parents[3]


class Other:
    name = "other"
    title = "another table"
    log_folder = "_other"
    has_catalogs = False
    has_branches = False

    def may_be_at(self, location: str) -> bool:
        return location.endswith(".other")


OTHER = Other()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with a format."""
    entry = EntryPoint("other", f"{__name__}:OTHER", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "_installed", lambda: EntryPoints([entry]))
    monkeypatch.setattr(registry, "LOADED", {"other": OTHER})


@pytest.mark.parametrize(
    ("folders", "name"), [(["_delta_log", "_versions"], "delta"), (["_versions"], "lance"), (["_other"], "other")]
)
@pytest.mark.usefixtures("installed")
def test_a_folder_is_looked_at(tmp_path: Path, folders: list[str], name: str) -> None:
    for each in folders:
        (tmp_path / each).mkdir()
    assert format_of(str(tmp_path)).name == name


@pytest.mark.usefixtures("installed")
def test_in_a_store_the_name_decides() -> None:
    found = [format_of(f"s3://lake/{name}").name for name in ("t", "t.lance", "t.other", "other")]
    assert found == ["delta", "lance", "other", "delta"]


@pytest.mark.usefixtures("installed")
def test_names() -> None:
    names = ["delta", "lance", "iceberg", "other"]
    assert [each.name for each in registry.formats()] == registry.format_names() == names
    assert (named_format("delta"), named_format("lance")) == (DELTA, LANCE)
    with pytest.raises(ConfigError, match="table_format: 'othre' is no format of a table") as raised:
        named_format("othre")
    assert raised.value.hint == "Did you mean 'other'?"
    with pytest.raises(ConfigError, match="branch: is given, but another table has no branches"):
        check_choices("other", "b")


@pytest.mark.anyio
async def test_a_folder_without_a_table(tmp_path: Path) -> None:
    assert format_of(str(tmp_path)) is DELTA
    assert await find_format(LocalStore(tmp_path)) is None


def test_metadata_is_read_only_for_tables_of_other_formats(tmp_path: Path) -> None:
    """It is that of all installed packages."""
    (tmp_path / "_versions").mkdir()
    script = f"""
import importlib.metadata
importlib.metadata.entry_points = None
from tailer.formats.registry import format_of, named_format
print(format_of({str(tmp_path)!r}).name, named_format("delta").name)
"""
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert found.split() == ["lance", "delta"]


def test_a_delta_table_is_opened_without_the_other_formats(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    script = f"""
import sys
from tailer.config.tables import TableRef
import tailer.cli.tail, tailer.read.execute
TableRef({str(tmp_path)!r}).open()
print(*sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "tailer.formats.delta.table" in found.split()
    assert not [each for each in found.split() if each.startswith("tailer.formats.lance")]
