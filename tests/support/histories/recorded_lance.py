"""Lance histories in small archives: a dataset, and its rows at every version as pylance has read them."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.feather

from tests.support.tables.lance_files import drop_transaction
from tests.support.tables.lance_histories import LanceHistory, Rows, rows_of

__all__ = ["LANCE_HISTORIES", "RecordedDataset", "read", "remove_transactions", "write"]

LANCE_HISTORIES: Final = Path(__file__).parents[2] / "lance_histories_data"


@dataclass(frozen=True)
class RecordedDataset:
    """A dataset at `path`, with the rows, columns and operation of each version from the first without a gap.

    `restored`: the version that each restore brought back.
    """

    path: Path
    stable: bool
    rows: dict[int, Rows]
    columns: dict[int, list[tuple[str, int]]]
    operations: dict[int, str]
    restored: dict[int, int]

    @property
    def first(self) -> int:
        """The first version whose rows are known."""
        return min(self.rows)


def remove_transactions(dataset: Path) -> None:
    """Remove every transaction, so that the operations of a dataset are not known."""
    for file in (dataset / "_transactions").iterdir():
        file.unlink()
    for manifest in (dataset / "_versions").glob("*.manifest"):
        drop_transaction(manifest)


def write(history: LanceHistory, archive: Path, *, with_transactions: bool) -> None:
    """Write a history into an archive, with the rows that pylance reads now, next to its dataset."""
    answers = history.path.parent / "answers"
    answers.mkdir()
    for version in history.rows:
        table = history.open(version).to_table()
        assert rows_of(table) == history.rows[version], "a version keeps its rows"
        plain = table.replace_schema_metadata().combine_chunks()
        pyarrow.feather.write_feather(plain, str(answers / f"{version}.rows"), compression="uncompressed")
    names = ("stable", "columns", "operations", "restored")
    facts = {name: getattr(history, name) for name in names}
    (answers / "facts.json").write_text(json.dumps(facts))
    if not with_transactions:
        remove_transactions(history.path)
    with tarfile.open(archive, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        files = [file for folder in (history.path, answers) for file in folder.rglob("*") if file.is_file()]
        # Similar files are adjacent, oldest first, for better compression.
        for file in sorted(files, key=lambda file: (file.suffix, file.parent, file.stat().st_mtime_ns, file.name)):
            tar.add(file, file.relative_to(history.path.parent), filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def read(archive: Path, folder: Path) -> RecordedDataset:
    """Unpack an archive that `write` made into `folder`."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    facts: dict[str, Any] = json.loads((folder / "answers" / "facts.json").read_bytes())
    tables: dict[int, pa.Table] = {
        int(file.stem): pyarrow.feather.read_table(file) for file in (folder / "answers").glob("*.rows")
    }
    return RecordedDataset(
        folder / "t",
        facts["stable"],
        {version: rows_of(tables[version]) for version in sorted(tables)},
        {int(version): [(name, number) for name, number in each] for version, each in facts["columns"].items()},
        {int(version): each for version, each in facts["operations"].items()},
        {int(version): each for version, each in facts["restored"].items()},
    )
