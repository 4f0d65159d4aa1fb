"""Change rows as CSV (RFC 4180, with line feeds): a heading, then a line for each row.

Values are those of JSON Lines, texts without the quotes of JSON; nested values are JSON in a quoted field. A null is an
empty field, an empty text is `""`.
"""

from tailer_sinks.encoding.csv.encoder import CsvEncoder

__all__ = ["CsvEncoder"]
