"""Footers of Parquet files, as lake-tailer reads them beside Arrow: numbers, or `ArrowInvalid`."""

from io import BytesIO
from struct import pack

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.read.parquet.footer import Footer, encoded_path
from tests.fuzz.target import Target, outcome

_COLUMNS, _GROUPS = 4, 3


def _seeds() -> list[bytes]:
    table = pa.table({"a": [1, 2, None], "b": ["x", "yy", None], "c": [1.5, None, 2.5], "d": [[1], [], None]})
    found = []
    for options in (
        {},
        {"compression": "none", "use_dictionary": False},
        {"version": "1.0", "write_statistics": False},
    ):
        out = BytesIO()
        pq.write_table(table, out, row_group_size=1, store_schema=False, **options)
        data = out.getvalue()
        found.append(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])
    return found


def _run(data: bytes) -> None:
    footer = Footer(pa.BufferReader(data + pack("<I", len(data)) + b"PAR1"))
    assert footer.content == data
    footer.sizes_at_once([encoded_path("a"), encoded_path("b")])
    for group in range(_GROUPS):
        together = outcome(lambda group=group: footer.chunks(group, range(_COLUMNS)), pa.ArrowInvalid)  # type: ignore[misc]
        for column in range(_COLUMNS):
            footer.statistics(group, column, _COLUMNS)
            assert together is None or footer.chunks(group, [column]) == {column: together[column]}


TARGET = Target(_run, _seeds, ("tailer.read.parquet.footer", "tailer.read.parquet.thrift"))
