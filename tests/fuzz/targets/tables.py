"""Whole tables with damaged files: their changes are the same, or end with an error of ours.

An input is the number of a table, then five bytes for each damage: a file, three for the offset, and what it is XORed
with. Rows before an error are right. A damage that no checksum covers, such as in a commit or in a page without one,
can give other rows; then only crashes, hangs and foreign errors are faults.
"""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa

import tailer
from tailer.errors import TailerError
from tests.fuzz.archives import files_of
from tests.fuzz.target import Target
from tests.support.histories.recorded_lance import LANCE_HISTORIES
from tests.support.oracle.recorded import CASES_DATA
from tests.support.tables.handwritten import HandwrittenTable

# Spark writes pages with checksums; pyarrow, by hand, without; Lance has none.
_CHECKED, _PLAIN, _LANCE = range(3)
_DAMAGE_BYTES: Final = 5
_FOOTER_LENGTH_BYTES: Final = 8
_FILES: Final = {
    _CHECKED: CASES_DATA / "restore_over_a_vector_gives_rows_back.1.tar.xz",
    _LANCE: LANCE_HISTORIES / "09.tar.xz",
}

Files = dict[str, bytes]


@cache
def _files(number: int) -> Files:
    if number in _FILES:
        found = {name: data for name, data in files_of(_FILES[number]) if not name.startswith("answers/")}
        return {name.partition("/")[2]: data for name, data in found.items()}
    with TemporaryDirectory() as folder:
        made = HandwrittenTable(Path(folder) / "t")
        made.commit(made.add(made.data("a.parquet", range(10))))
        made.commit(made.remove("a.parquet"), made.add("a.parquet", made.vector(1, [2, 5])))
        made.data("_change_data/c.parquet", [1, 3], _change_type=["delete", "insert"])
        made.commit({"cdc": {"path": "_change_data/c.parquet", "partitionValues": {}, "size": 1, "dataChange": False}})
        paths = sorted(path for path in made.path.rglob("*") if path.is_file())
        return {str(path.relative_to(made.path)): path.read_bytes() for path in paths}


def _changes(files: Files) -> Iterator[pa.RecordBatch]:
    """Write a table and read it. Commits are dated by their files, which get the same time."""
    with TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, (1_700_000_000, 1_700_000_000))
        start = "earliest" if "_delta_log" in "".join(files) else _first(files)
        yield from tailer.changes(folder, start=start)


def _first(files: Files) -> int:
    """Return the first version of a dataset whose later ones have no gap: names count down from the largest number."""
    versions = sorted(2**64 - 1 - int(Path(name).stem) for name in files if name.endswith(".manifest"))
    return next(each for each in versions if set(range(each, versions[-1] + 1)) <= set(versions))


@cache
def _expected(number: int) -> list[dict[str, object]]:
    return [row for batch in _changes(_files(number)) for row in batch.to_pylist()]


def _is_covered(name: str, data: bytes, at: int) -> bool:
    """Return whether a checksum covers a byte: pages of Spark's Parquet files, behind which is the footer."""
    footer = len(data) - _FOOTER_LENGTH_BYTES - int.from_bytes(data[-8:-4], "little")
    return name.endswith(".parquet") and at < footer


def _run(data: bytes) -> None:
    number = sum(data[:1]) % 3
    files, covered = dict(_files(number)), number == _CHECKED
    names = list(files)
    for at in range(1, len(data) - _DAMAGE_BYTES + 1, _DAMAGE_BYTES):
        name = names[data[at] % len(names)]
        content = bytearray(files[name])
        offset = int.from_bytes(data[at + 1 : at + 4], "little") % len(content)
        covered = covered and _is_covered(name, files[name], offset)
        content[offset] ^= data[at + 4]
        files[name] = bytes(content)
    expected, found = _expected(number), []
    try:
        for batch in _changes(files):
            found += batch.to_pylist()
    except TailerError as error:
        assert isinstance(error.hint, str)  # noqa: PT017 - the rows before it are compared, too
        expected = expected[: len(found)]
    if covered:
        assert found == expected


def _seeds() -> list[bytes]:
    return [
        bytes([number, at, *offset.to_bytes(3, "little"), 1 << at % 8])
        for number in range(3)
        for at in range(len(_files(number)) if number != _LANCE else 12)
        for offset in (5, 300)
    ]


TARGET = Target(
    _run,
    _seeds,
    (
        "tailer.read.execute",
        "tailer.read.projection",
        "tailer.read.parquet.layout",
        "tailer.formats.lance.rows.fragments",
    ),
    seconds=20,
)
