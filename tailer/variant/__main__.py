"""`python -m tailer.variant FILE.parquet [COLUMN]`: print the Variants of a column as JSON, one per line.

A SQL NULL is an empty line. A broken value ends with the error `InvalidVariant`, after the lines before it.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.variant.columns import json_texts
from tailer.variant.metadata import InvalidVariant

__all__ = ["main"]

_BATCH_ROWS: Final = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tailer.variant",
        description="Print the Variants of a column of a Parquet file as JSON, one per line.",
    )
    parser.add_argument("file", metavar="FILE.parquet")
    parser.add_argument("column", metavar="COLUMN", nargs="?", help="by default the only Variant column of the file")
    given = parser.parse_args(arguments)
    try:
        for text in _texts(given.file, given.column):
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough; Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FileNotFoundError:
        return _fail("FileNotFoundError", f"{given.file}: there is no such file")
    except (InvalidVariant, pa.ArrowException, OSError) as error:
        return _fail(type(error).__name__, f"{given.file}: {error}")
    return 0


def _fail(name: str, text: str) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"{name}: {text}\n")
    return 1


def _texts(path: str, column: str | None) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        name = _column(file.schema_arrow, column)
        first = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=[name]):
            try:
                texts = json_texts(batch.column(0))
            except InvalidVariant:
                yield from _up_to_error(batch.column(0), first)
                raise
            yield from (text or "" for text in texts)
            first += batch.num_rows


def _up_to_error(column: pa.Array, first: int) -> Iterator[str]:
    """Yield the texts before the first broken value, then raise its error. `first`: the number of the first row."""
    for index in range(len(column)):
        try:
            text = json_texts(column.slice(index, 1))[0]
        except InvalidVariant as error:
            raise InvalidVariant(str(error).replace("row 0:", f"row {first + index}:", 1)) from None
        yield text or ""


def _column(schema: pa.Schema, wanted: str | None) -> str:
    """Return the name of the column to print. Raises `InvalidVariant`."""
    names: list[str] = [field.name for field in schema if _looks_like_variant(field.type)]
    if wanted is not None:
        if wanted not in schema.names:
            raise InvalidVariant(f"there is no column {wanted!r}, only {', '.join(schema.names)}")
        return wanted
    if len(names) != 1:
        raise InvalidVariant(f"name a column: it has {', '.join(names) or 'none'} that could be Variants")
    return names[0]


def _looks_like_variant(kind: pa.DataType) -> bool:
    names = {field.name for field in kind} if pa.types.is_struct(kind) else set()
    return "metadata" in names and bool({"value", "typed_value"} & names)


if __name__ == "__main__":
    sys.exit(main())
