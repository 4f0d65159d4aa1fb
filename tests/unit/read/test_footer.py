"""Column chunks as `Footer` reads them are those that Arrow knows, of any row group and column."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.read.parquet.batch_sizes import Dictionary
from tailer.read.parquet.footer import Footer, encoded_path
from tests.support.tables.log_files import parquet

ROWS = 1000


def table() -> pa.Table:
    texts = [f"value {row % 300}" for row in range(ROWS)]
    lists = [[row, None] if row % 3 else None for row in range(ROWS)]
    return pa.table({"id": range(ROWS), "text": texts, "list": pa.array(lists, pa.list_(pa.int64()))})


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("dictionary", [True, ["text"], False], ids=str)
def test_chunks(tmp_path: Path, compression: str, dictionary: Any) -> None:
    path = parquet(tmp_path / "f", table(), row_group_size=130, compression=compression, use_dictionary=dictionary)
    with pa.OSFile(str(path)) as source:
        metadata = pq.ParquetFile(source).metadata
        footer = Footer(source)
        for group in (0, 3, 3, 7, 1):
            for index, chunk in footer.chunks(group, [0, 1, 2]).items():
                known = metadata.row_group(group).column(index)
                assert (chunk.num_values, chunk.size_bytes) == (known.num_values, known.total_uncompressed_size)
                assert chunk.begin == (known.dictionary_page_offset or known.data_page_offset)
                assert chunk.stored_bytes == known.total_compressed_size
                assert chunk.has_dictionary == known.has_dictionary_page
                assert not chunk.has_prefixes
            texts = table()["text"].slice(group * 130, 130).to_pylist()
            assert footer.chunks(group, [1])[1].text_bytes == sum(map(len, texts))


def test_a_dictionary(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", table(), row_group_size=500, compression="zstd")
    with pa.OSFile(str(path)) as source:
        found = Dictionary(source, Footer(source).chunks(1, [1])[1]).texts()
        assert found is not None
        assert sorted(found.cast(pa.string()).to_pylist()) == sorted(f"value {number}" for number in range(300))


def test_a_chunk_without_dictionary(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", table(), use_dictionary=False)
    with pa.OSFile(str(path)) as source:
        chunk = Footer(source).chunks(0, [1])[1]
        dictionary = Dictionary(source, chunk)
        assert (dictionary.texts(), dictionary.size) == (None, chunk.size_bytes)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_sizes_at_once_are_those_of_the_chunks(tmp_path: Path, compression: str, dictionary: bool) -> None:
    path = parquet(tmp_path / "f", table(), compression=compression, use_dictionary=dictionary)
    with pa.OSFile(str(path)) as source:
        footer = Footer(source)
        found = footer.sizes_at_once(map(encoded_path, ("id", "text", "list.list.element")))
        chunks = footer.chunks(0, [0, 1, 2]).values()
        assert found == [(chunk.num_values, chunk.size_bytes) for chunk in chunks]


@pytest.mark.parametrize("path", ["other", "list.element", "x" * 200, ".".join("abcdefghijklmno")])
def test_sizes_of_a_chunk_that_is_not_there(tmp_path: Path, path: str) -> None:
    with pa.OSFile(str(parquet(tmp_path / "f", table()))) as source:
        assert Footer(source).sizes_at_once([encoded_path(path)]) is None


def test_sizes_of_several_row_groups_are_not_found_at_once(tmp_path: Path) -> None:
    with pa.OSFile(str(parquet(tmp_path / "f", table(), row_group_size=500))) as source:
        assert Footer(source).sizes_at_once([encoded_path("id")]) is None


def test_a_value_like_a_path_does_not_stand_for_it(tmp_path: Path) -> None:
    """Bounds of values are in the footer, too."""
    value = encoded_path("text") + bytes([21, 2, 22, 2, 22, 2])
    rows = pa.table({"before": pa.array([value]), "text": ["a" * 50]})
    with pa.OSFile(str(parquet(tmp_path / "f", rows))) as source:
        assert Footer(source).sizes_at_once([encoded_path("text")]) is None


@pytest.mark.parametrize(("group", "column"), [(1, 0), (0, 3)])
def test_a_chunk_that_is_not_there(tmp_path: Path, group: int, column: int) -> None:
    path = parquet(tmp_path / "f", table())
    with pa.OSFile(str(path)) as source, pytest.raises(pa.ArrowInvalid, match=f"columns of row group {group}"):
        Footer(source).chunks(group, [column])
