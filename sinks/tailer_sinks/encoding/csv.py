"""Change rows as CSV (RFC 4180, with line feeds): a heading, then a line for each row.

Values are those of JSON Lines, texts without the quotes of JSON; nested values are JSON in a quoted field. A null is an
empty field, an empty text is `""`.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer_sinks.encoding.columns import NoText, whole, writer_for

__all__ = ["CsvEncoder"]

_QUOTED: Final = re.compile('[,"\\r\\n]')


class CsvEncoder:
    """Encodes rows of `schema` for the sink `sink`. The first lines begin with the heading."""

    def __init__(self, sink: str, schema: pa.Schema) -> None:
        self.schema = schema
        self._sink = sink
        self._heading_due = True

    def lines(self, rows: pa.RecordBatch) -> bytes:
        """Return the lines of rows. Raises `SinkRejected` for a column without a text."""
        columns = [self._texts(name, column) for name, column in zip(rows.schema.names, rows.columns, strict=True)]
        lines = [_line(cells) for cells in zip(*columns, strict=True)]
        if self._heading_due:
            lines.insert(0, _line([_field(name) for name in rows.schema.names]))
            self._heading_due = False
        return "".join(lines).encode()

    def _texts(self, name: str, column: pa.Array) -> list[str]:
        try:
            texts = whole(writer_for(column.type)(column)).to_pylist()
        except NoText as error:
            raise SinkRejected(self._sink, str(error.below(name)), "Leave the column out.") from error
        return ["" if text == "null" else _field(json.loads(text) if text.startswith('"') else text) for text in texts]


def _line(fields: Sequence[str]) -> str:
    return ",".join(fields) + "\n"


def _field(text: str) -> str:
    return text if text and not _QUOTED.search(text) else '"' + text.replace('"', '""') + '"'
