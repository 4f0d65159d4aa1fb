"""Version ranges: the versions that share one."""

from pathlib import Path

import anyio
import pytest

from tailer.changelog.rules import Carryovers, PairingRules
from tailer.errors import LogCorrupt, SchemaChanged
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.delivery import VersionRange
from tailer.pipeline.policy import OnSchemaChange, Policy
from tailer.read.data_files import LOCAL
from tailer.spark.write.version_ranges import VersionRanges, splits_of
from tailer.stores.local import LocalStore
from tests.support.tables.handwritten import HandwrittenTable

WIDE = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},%s]}'
MORE = WIDE % '{"name":"n","type":"long","nullable":true,"metadata":{}}'


@pytest.fixture
def table(tmp_path: Path) -> HandwrittenTable:
    """Write a table with three versions that insert a row each."""
    made = HandwrittenTable(tmp_path / "table")
    for version in range(1, 4):
        made.commit(made.add(made.data(f"{version}.parquet", [version])))
    return made


async def _cut(path: Path, policy: Policy, until: int | None, most: int, found: list[VersionRange]) -> None:
    log = DeltaTableLog(LocalStore(path))
    version_ranges = VersionRanges(log, policy, await log.seek(0), until)
    while (version_range := await version_ranges.next(most)) is not None:
        found.append(version_range)


def cut(
    table: HandwrittenTable,
    policy: Policy | None = None,
    until: int | None = None,
    most: int = 100,
    found: list[VersionRange] | None = None,
) -> list[tuple[int, int]]:
    """Return the first and last version of each range. `found`: filled also if an error is raised."""
    version_ranges: list[VersionRange] = [] if found is None else found
    anyio.run(_cut, table.path, policy or Policy(), until, most, version_ranges)
    return versions(version_ranges)


def versions(version_ranges: list[VersionRange]) -> list[tuple[int, int]]:
    """Return the first and last version of each."""
    return [(version_range.first, version_range.last) for version_range in version_ranges]


def test_all_versions_make_one_range(table: HandwrittenTable) -> None:
    assert cut(table) == [(0, 3)]
    assert cut(table, until=1) == [(0, 1)]
    assert cut(table, most=3) == [(0, 2), (3, 3)]


def test_a_change_of_columns_begins_another(table: HandwrittenTable) -> None:
    table.commit({"metaData": {**table.metadata, "schemaString": MORE}})
    table.commit(table.add(table.data("5.parquet", [5])))
    assert cut(table) == [(0, 3), (4, 5)]
    found: list[VersionRange] = []
    with pytest.raises(SchemaChanged, match="column n"):
        cut(table, Policy(on_schema_change=OnSchemaChange.FAIL), found=found)
    assert versions(found) == [(0, 3)]


def test_another_table_begins_another(table: HandwrittenTable) -> None:
    table.commit({"metaData": {**table.metadata, "id": "22222222-3333-4444-5555-666666666666"}})
    assert cut(table) == [(0, 3), (4, 4)]


def test_an_error_is_raised_after_the_ranges_before_it(table: HandwrittenTable) -> None:
    table.commit_file(2).write_text("{")
    found: list[VersionRange] = []
    with pytest.raises(LogCorrupt):
        cut(table, found=found)
    assert versions(found) == [(0, 1)]


def test_a_span_knows_its_rows(table: HandwrittenTable) -> None:
    table.commit(table.remove("1.parquet"), table.add(table.data("4.parquet", [1, 4])))
    found: list[VersionRange] = []
    anyio.run(_cut, table.path, Policy(), None, 100, found)
    (version_range,) = found
    assert len(splits_of(version_range, PairingRules(carryovers=Carryovers.KEEP), LOCAL)) == 1
