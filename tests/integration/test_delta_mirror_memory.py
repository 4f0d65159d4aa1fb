"""Memory of a mirror of the `delta` sink is bounded, however large the table and a version are (invariant 7).

On every landing: the memory of repairing a mirror all of whose rows differ (`integration/test_verification.py`), by the
same code.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

WRITER: Final = Path(__file__).with_name("delta_mirror_writer.py")
ROWS: Final = 2_500_000  # 500 MB
LIMIT_MB: Final = 1000  # where other tests take the processors, delta-rs holds more rows that wait to be written


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{}, {"deletes": "mark"}, {"mode": "history"}], ids=["plain", "mark", "history"])
def test_large_tables_and_versions(tmp_path: Path, options: dict[str, str]) -> None:
    """A MERGE would keep the whole table in memory to update a row at each of its ends."""
    peaks = []
    for version, what in enumerate(("snapshot", "ends", "all", "snapshot")):
        command = [sys.executable, str(WRITER), str(tmp_path / "m"), str(version), what, str(ROWS), json.dumps(options)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        peaks.append(int(done.stdout) >> 20)
        dataset = DeltaTable(tmp_path / "m").to_pyarrow_dataset()
        ended = {"_deleted_version", "_valid_to_version"}.intersection(dataset.schema.names)
        is_open = pc.field(ended.pop()).is_null() if ended else None
        ids = dataset.to_table(columns=["id"], filter=is_open).column("id")
        assert (len(ids), pc.count_distinct(ids).as_py()) == (ROWS, ROWS)
    print(f"peaks of a snapshot, of an update of two rows, of all, and of another snapshot: {peaks} MB")
    assert max(peaks) < LIMIT_MB, peaks
