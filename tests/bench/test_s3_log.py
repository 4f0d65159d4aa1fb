"""The log of a table in S3 that has no checkpoint: its start and catching up, with requests by kind.

Each request takes `DELAY_S` longer, as to a distant server. Nothing is asserted about time. `make bench` prints it.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import pytest

from tailer.config.tables import TableRef
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tests.support.histories.s3_history import upload
from tests.support.s3.link import S3Link
from tests.support.s3.server import S3Server
from tests.support.streams import Growing

DELAY_S: Final = float(os.environ.get("LAKE_TAILER_BENCH_DELAY_S", "0.02"))
VERSIONS: Final = 2000


def test_a_long_log(
    versitygw: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Identity, state before the first version, then every plan; no rows are read."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    table, bucket = Growing(tmp_path / "t"), versitygw.new_bucket()
    table.insert_again([1], VERSIONS)
    upload(versitygw, bucket, "t", table.path)
    with S3Link(versitygw, delay_s=DELAY_S) as link:
        anyio.run(_follow, link, bucket, _shown(capsys))


async def _follow(link: S3Link, bucket: str, show: Callable[[str], None]) -> None:
    log = TableRef(f"s3://{bucket}/t").open(Stores(((f"s3://{bucket}", S3Options(endpoint=link.endpoint)),)))
    begun = time.perf_counter()
    await log.table_id()
    await log.ids(-1)
    await log.seek(0)
    seconds = time.perf_counter() - begun
    show(f"start before version 0 of {VERSIONS}: {seconds:.1f} s, {dict(Counter(link.methods()))}")
    link.requests.clear()
    begun, found = time.perf_counter(), 0
    while await log.next_plan() is not None:
        found += 1
    seconds = time.perf_counter() - begun
    show(f"catching up: {found / seconds:.0f} versions/s, {dict(Counter(link.methods()))} for {found} versions")
    assert found == VERSIONS + 1


def _shown(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print past pytest's capture."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}")

    return line
