"""Lance's metadata as arbitrary bytes: reading gives a value or a named error, in time and memory bounded by the file.

Bytes are those of real files, of every kind, damaged as by disks and writers. Examples are the same in every run.
"""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import lance
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tailer.errors import TailerError
from tailer.formats.lance.history import parse_operation
from tailer.formats.lance.manifest import parse_manifest, refuse_unknown
from tailer.formats.lance.protobuf import InvalidMessage
from tailer.formats.lance.schema import arrow_schema
from tests.support.seeds import examples
from tests.support.tables.damaged import broken
from tests.support.tables.lance_files import field, manifest_file, varint

quick: Final = settings(
    derandomize=True,
    max_examples=examples(50),
    phases=[Phase.explicit, Phase.generate],
)
SECONDS: Final = 2.0  # for one file of some kilobytes, on a busy machine
MEMORY_MB: Final = 400


@pytest.fixture(scope="module", autouse=True)
def memory_stays_bounded() -> Iterator[None]:
    """Check that no damaged file of some kilobytes makes this process grow by much."""
    real_files()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < MEMORY_MB


@cache
def real_files() -> dict[str, list[bytes]]:
    """Return the metadata files of a dataset that pylance wrote, by the end of their names."""
    with TemporaryDirectory() as folder:
        nested = pa.array(
            [{"x": [1], "v": b"12"}] * 40_000, pa.struct([("x", pa.list_(pa.int8())), ("v", pa.binary())])
        )
        table = pa.table({"key": range(40_000), "nested": nested}).replace_schema_metadata({"a": "b"})
        dataset = lance.write_dataset(table, folder, enable_stable_row_ids=True, max_rows_per_file=20_000)
        dataset.delete("key in (3, 4, 25000)")
        dataset.delete("key % 3 = 1")
        dataset.update({"key": "key + 1000000"}, where="key % 1000 = 0")
        dataset.optimize.compact_files(target_rows_per_fragment=100_000)
        dataset.delete("key < 1000")
        found: dict[str, list[bytes]] = {}
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in (".manifest", ".txn", ".arrow", ".bin"):
                found.setdefault(path.suffix, []).append(path.read_bytes())
    return found


def damaged(kind: str) -> st.SearchStrategy[bytes]:
    """Generate arbitrary bytes, and damaged files of a kind."""
    return st.binary(max_size=200) | st.deferred(lambda: broken(real_files()[kind]))


def attempt(work: Callable[[], object]) -> None:
    """Run `work`, which may raise a named error, in bounded time."""
    start = time.thread_time()
    with suppress(TailerError, InvalidMessage):
        work()
    assert time.thread_time() - start < SECONDS


def follow(data: bytes) -> None:
    """Read a manifest as a plan does."""
    manifest = parse_manifest(data, "t/_versions/1.manifest")
    attempt(lambda: refuse_unknown(manifest, "t"))
    attempt(lambda: arrow_schema(manifest, "t"))
    attempt(lambda: manifest.fragments_by_id("t"))
    attempt(lambda: parse_operation(manifest.transaction or b""))


@quick
@given(damaged(".manifest"))
def test_bytes_for_a_manifest(data: bytes) -> None:
    attempt(lambda: follow(data))


@pytest.mark.parametrize(
    "message",
    [
        field(1, b"") * 50_000,
        field(2, b"") * 50_000,
        field(2, field(2, field(2, varint(1) * 100_000))),
        field(16, field(1, "k")) * 20_000,
        field(2, field(3, b"")) * 50_000,
        b"".join(field(1, field(3, at) + field(4, at - 1) + field(5, "struct")) for at in range(5_000)),
    ],
)
def test_a_manifest_of_very_many_small_parts(message: bytes) -> None:
    attempt(lambda: follow(manifest_file(field(3, 1) + message)))
