"""Files, requests and bytes that are read for a condition over a table of 1,000 files in 100 partitions.

Beside delta-rs' `load_cdf` with a predicate, and Spark's `CHANGES` with the same condition. `CHANGES` of Delta 4.4
reads partition columns as null, so for a partition it is Delta's change feed. Each reader is a process of its own. In
S3, a link counts requests for data files, and the bytes of all answers. Local bytes are those that the system counts,
of Spark with those that it shuffles. Nothing is asserted about time. `make bench` prints the table.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tailer.__main__ import ALLOCATOR
from tests.bench.conftest import PutLine
from tests.bench.counting_link import CountingLink
from tests.bench.where_tables import CONDITIONS, track_rows, write_table
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.tiers import using

ROOT: Final = Path(__file__).parents[2]
MB: Final = 1e6


def read(reader: str, table: str, where: str | None, **variables: str) -> dict[str, float]:
    """Read the changes in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.where_reader", reader, table, where or ""]
    environment = os.environ | dict([ALLOCATOR]) | variables
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    taken: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return taken


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("where") / "t"
    write_table(path)
    track_rows(path)
    return path


@pytest.fixture(scope="module")
def remote(table: Path, versitygw: S3Server) -> str:
    return RemoteTable.copied(table, versitygw, versitygw.new_bucket()).location


@pytest.fixture(scope="module")
def link(versitygw: S3Server) -> Iterator[CountingLink]:
    """A link that counts."""
    with CountingLink(versitygw) as link:
        yield link


@pytest.mark.parametrize("title", CONDITIONS)
def test_local_bytes(table: Path, put_line: PutLine, title: str) -> None:
    using("spark")
    spark = "feed" if "partition" in title else "CHANGES"
    found = {reader: read(reader, str(table), CONDITIONS[title]) for reader in ("ours", "delta-rs", spark)}
    assert len({taken["rows"] for taken in found.values()}) == 1
    ours, delta_rs, sparks = (
        f"{taken['read_bytes'] / MB:.1f} MB, {taken['seconds']:.2f} s" for taken in found.values()
    )
    put_line(f"{title}, local", ours, f"delta-rs: {delta_rs}; Spark's {spark}: {sparks}", "-")


@pytest.mark.parametrize("title", CONDITIONS)
def test_requests_and_bytes_in_s3(
    remote: str, versitygw: S3Server, link: CountingLink, put_line: PutLine, title: str
) -> None:
    keys = {**versitygw.environment, "AWS_ENDPOINT_URL": link.endpoint, "AWS_ALLOW_HTTP": "true"}
    said, rows = [], set()
    for reader in ("ours", "delta-rs"):
        link.clear()
        rows.add(read(reader, remote, CONDITIONS[title], **keys)["rows"])
        data = [each.path for each in link.requests if each.method == "GET" and each.path.endswith(".parquet")]
        said.append(f"{len(set(data))} files, {len(data)} GETs, {link.sent_bytes / MB:.1f} MB")
    assert len(rows) == 1
    put_line(f"{title}, S3", said[0], f"delta-rs: {said[1]}", "-")
