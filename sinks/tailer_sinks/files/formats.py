"""The content of a file of the `files` sink, written while the file is hidden. Blocking: for worker threads.

Lines of JSON may differ from each other, so rows of any schema follow each other there, with a line between them that
describes the change (`tailer_sinks.encoding.flat`). A Parquet file has a single schema. So when rows of another
schema come, another file is begun with the columns of both (`tailer_sinks.encoding.typed.unite`), and the rows written
so far are copied there, some thousand at a time. Only transactions with a schema change between their rows pay for
this. Events have no place in Parquet, except that a gap is a row with the change type `gap`.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import fsync
from pathlib import Path
from typing import IO, ClassVar, Final, Self

import pyarrow as pa
from pyarrow import parquet
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import ControlEvent, Gap
from tailer_sinks.encoding.flat import AT_ONCE, FlatEncoder, encoded_ahead, event_line, slices
from tailer_sinks.encoding.typed import Misfit, conform, gap_row, unite
from tailer_sinks.encoding.values import FORMS, JsonForms
from tailer_sinks.encoding.variants import VariantForm, form_schema, in_form

__all__ = ["Draft", "HiddenFile", "JsonLines", "Parquet"]

WRITE_BUFFER_BYTES: Final = 1 << 20
ROW_GROUP_ROWS: Final = 128 << 10
ROW_GROUP_BYTES: Final = 32 << 20
COPIED_ROWS: Final = 16 << 10
_LINES_MAY_DIFFER: Final = (
    'Set format = "jsonl" for this pipeline: lines may differ, the rows of a Parquet file may not.'
)


class HiddenFile:
    """A file that no reader looks for: `content`, to be written, which this process can open again at `path`."""

    def __init__(self, path: Path, content: IO[bytes]) -> None:
        self.path = path
        self.content = content

    @classmethod
    def named(cls, path: Path) -> Self:
        """Create a file at `path`, which may get another name later."""
        return cls(path, path.open("xb", buffering=WRITE_BUFFER_BYTES))

    @classmethod
    def temporary(cls) -> Self:
        """Create a file in TMPDIR, without a name where the system allows that: it does not survive the process."""
        content = tempfile.TemporaryFile(buffering=WRITE_BUFFER_BYTES, prefix="lake-tailer-")  # noqa: SIM115 - removed
        path = Path(f"/proc/self/fd/{content.fileno()}")
        if path.exists():
            return cls(path, content)
        content.close()
        named = tempfile.NamedTemporaryFile(buffering=WRITE_BUFFER_BYTES, prefix="lake-tailer-", delete=False)  # noqa: SIM115
        return cls(Path(named.name), named)

    def sync(self) -> None:
        """Make the content durable."""
        self.content.flush()
        fsync(self.content.fileno())

    def remove(self) -> None:
        """Remove the name, and close the file."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        with suppress(OSError):  # the disk is too full for the last bytes
            self.content.close()


class Draft(ABC):
    """A hidden file of the sink `sink`. `schema`: of the next rows.

    `new_file`: makes hidden files. `variant`: the form of Variants; None: the format's own.
    """

    suffix: ClassVar[str]

    def __init__(
        self, sink: str, new_file: Callable[[], HiddenFile], schema: pa.Schema, variant: VariantForm | None = None
    ) -> None:
        self.schema = schema
        self._sink = sink
        self._new_file = new_file
        self._variant = variant

    @abstractmethod
    def check(self) -> None:
        """Raise `SinkRejected` if rows of `schema` have no form. Makes no file."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows of `schema`, now or later. Raises `SinkRejected` if the format has no place for them."""

    @abstractmethod
    def announce(self, event: ControlEvent) -> None:
        """Append an event, if the format has a form for it. Raises as `write`."""

    @abstractmethod
    def finish(self) -> Path:
        """Complete and sync the file. Return its path."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the hidden names and release everything, whether the file is complete or not."""


class JsonLines(Draft):
    """A file with a line for each row and event. Variants are their JSON values by default. `forms`: of numbers."""

    suffix = "jsonl"

    def __init__(
        self,
        sink: str,
        new_file: Callable[[], HiddenFile],
        schema: pa.Schema,
        variant: VariantForm | None = None,
        forms: JsonForms = FORMS,
    ) -> None:
        super().__init__(sink, new_file, schema, variant)
        self._forms = forms
        self._file: HiddenFile | None = None
        self._encoder: FlatEncoder | None = None

    @override
    def check(self) -> None:
        self._encoder = FlatEncoder(self._sink, form_schema(self.schema, self._variant), self._forms)

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        file = self._open()
        if self._encoder is None:
            self.check()
        assert self._encoder is not None
        encode = self._encoder.lines
        for lines in encoded_ahead(
            lambda part: encode(in_form(self._sink, part, self._variant)), slices(rows), AT_ONCE
        ):
            file.content.write(lines)

    @override
    def announce(self, event: ControlEvent) -> None:
        if not isinstance(event, Gap):
            self.schema = event.after
            self.check()
        self._open().content.write(event_line(event, self._forms.int64))

    @override
    def finish(self) -> Path:
        file = self._open()
        file.sync()
        return file.path

    @override
    def remove(self) -> None:
        if self._file is not None:
            self._file.remove()

    def _open(self) -> HiddenFile:
        if self._file is None:
            self._file = self._new_file()
        return self._file


class Parquet(Draft):
    """A file with rows in row groups, under one schema. Variants are the struct in which they come by default."""

    suffix = "parquet"

    def __init__(
        self, sink: str, new_file: Callable[[], HiddenFile], schema: pa.Schema, variant: VariantForm | None = None
    ) -> None:
        super().__init__(sink, new_file, schema, variant)
        self._parts: list[_Part] = []  # the last one is the file; there are several only while rows are copied
        self._fitting: pa.Schema | None = None  # schemas of rows that fit there

    @override
    def check(self) -> None:
        with _named(self._sink, pa.Table.from_batches([], form_schema(self.schema, self._variant))) as rows:
            parquet.write_table(rows, pa.BufferOutputStream())

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        if len(rows) == 0:
            return
        rows = in_form(self._sink, rows, self._variant)
        try:
            if not self._parts:
                self._begin(unite(pa.schema([]), rows.schema))
            elif rows.schema is not self._fitting and not rows.schema.equals(self._fitting):
                united = unite(self._parts[-1].schema, rows.schema)
                if not united.equals(self._parts[-1].schema):
                    self._move(self._parts[-1], self._begin(united))
            self._fitting = rows.schema
            self._parts[-1].write(rows)
        except Misfit as misfit:
            reason = f"versions that share a file differ too much: {misfit}"
            raise SinkRejected(self._sink, reason, _LINES_MAY_DIFFER) from misfit

    @override
    def announce(self, event: ControlEvent) -> None:
        """Say nothing of two schemas that cannot be united: rows of the second are refused."""
        if isinstance(event, Gap):
            self.write(gap_row(event, self.schema))
        else:
            self.schema = event.after

    @override
    def finish(self) -> Path:
        part = self._parts[-1] if self._parts else self._begin(form_schema(self.schema, self._variant))
        part.close()
        return part.path

    @override
    def remove(self) -> None:
        for part in self._parts:
            part.remove()

    def _move(self, part: "_Part", other: "_Part") -> None:
        part.close()
        for rows in part.read():
            other.write(rows)
        part.remove()
        self._parts.remove(part)

    def _begin(self, schema: pa.Schema) -> "_Part":
        part = _Part(self._sink, self._new_file(), schema)
        self._parts.append(part)
        part.open()
        return part


class _Part:
    """A Parquet file. Batches are merged to row groups of a size that reads well."""

    def __init__(self, sink: str, file: HiddenFile, schema: pa.Schema) -> None:
        self.schema = schema
        self._sink = sink
        self._file = file
        self._batches: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._writer: parquet.ParquetWriter | None = None

    @property
    def path(self) -> Path:
        return self._file.path

    def open(self) -> None:
        """Create the file. Raises `SinkRejected` for a type without a form."""
        with _named(self._sink, pa.Table.from_batches([], self.schema)):
            self._writer = parquet.ParquetWriter(self._file.content, self.schema, compression="zstd")

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows that fit into `schema`. Raises `Misfit` for a value that does not."""
        self._batches.append(conform(rows, self.schema))
        self._held_rows += len(rows)
        self._held_bytes += rows.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows as a row group. Raises `SinkRejected` for values without a form."""
        if self._batches and self._writer is not None:
            with _named(self._sink, pa.Table.from_batches(self._batches, self.schema)) as table:
                self._writer.write_table(table, max(1, len(table)))
            self._batches.clear()
            self._held_rows = self._held_bytes = 0

    def close(self) -> None:
        """Complete and sync the file."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
        self._file.sync()

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the completed file."""
        with parquet.ParquetFile(self.path) as written:
            yield from written.iter_batches(COPIED_ROWS)

    def remove(self) -> None:
        """Release everything."""
        self._batches.clear()
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()  # otherwise the library does so on garbage collection
            self._writer.is_open = False
        self._file.remove()


@contextmanager
def _named(sink: str, rows: pa.Table) -> Iterator[pa.Table]:
    """Give rows to be written. Raises `SinkRejected` that names their columns without a form."""
    try:
        yield rows
    except pa.ArrowNotImplementedError as error:
        raise SinkRejected(sink, f"no Parquet form: {error}", "Leave the column out.") from error
    except pa.ArrowInvalid as error:
        reason = f"no Parquet form for values of {', '.join(_refused_columns(rows))}: {error}"
        raise SinkRejected(sink, reason, _LINES_MAY_DIFFER) from error


def _refused_columns(rows: pa.Table) -> Iterator[str]:
    """Yield the columns that cannot be written: for nested columns the library names only the field."""
    for name in rows.schema.names:
        try:
            parquet.write_table(rows.select([name]), pa.BufferOutputStream())
        except pa.ArrowInvalid:
            yield name
