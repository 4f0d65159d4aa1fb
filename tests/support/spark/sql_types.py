"""Columns in Spark's SQL: names, types and values, for any schema of a log."""

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["literal", "maker", "paths", "quoted", "sql_type"]

_MAKERS: Final = {
    "byte": "CAST(pmod({h}, 100) AS TINYINT)",
    "short": "CAST(pmod({h}, 30000) AS SMALLINT)",
    "integer": "CAST(pmod({h}, 1000) AS INT)",
    "long": "IF(pmod({h}, 3) = 0, 1000003L * {h}, pmod({h}, 1000))",
    "float": "CASE pmod({h}, 9) WHEN 0 THEN float('NaN') ELSE CAST(pmod({h}, 90) / 7 AS FLOAT) END",
    "double": "CASE pmod({h}, 9) WHEN 0 THEN double('NaN') WHEN 1 THEN -0.0D ELSE pmod({h}, 90) / 7 END",
    "boolean": "pmod({h}, 2) = 0",
    "string": "IF(pmod({h}, 7) = 0, NULL, IF(pmod({h}, 11) = 0, '', concat('n', pmod({h}, 100))))",
    "binary": "IF(pmod({h}, 5) = 0, NULL, unhex(substr(md5(string({h})), 1, 6)))",
    "date": "date_add(DATE'1969-12-31', CAST(pmod({h}, 2) AS INT))",
    "timestamp": "timestamp_micros(pmod({h}, 4000000000) * 1000003 - 1000000000000)",
    "timestamp_ntz": "CAST(timestamp_micros(pmod({h}, 4000000000) * 1000003 - 1000000000000) AS TIMESTAMP_NTZ)",
}


def quoted(*path: str) -> str:
    """Return a column, or a field inside one, in SQL."""
    return ".".join(f"`{name}`" for name in path)


def sql_type(kind: Any) -> str:
    """Return a type of the log's schema in SQL."""
    if isinstance(kind, str):
        return {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}.get(kind, kind.upper())
    match kind["type"]:
        case "struct":
            fields = [f"{quoted(field['name'])}: {sql_type(field['type'])}" for field in kind["fields"]]
            return f"STRUCT<{', '.join(fields)}>"
        case "array":
            return f"ARRAY<{sql_type(kind['elementType'])}>"
        case _:
            return f"MAP<{sql_type(kind['keyType'])}, {sql_type(kind['valueType'])}>"


def maker(kind: Any, salt: str) -> str:
    """Return an expression that makes a value of a type from the column `id`."""
    h = f"hash(id, '{salt}')"
    if isinstance(kind, str):
        if kind.startswith("decimal"):
            return f"CAST(pmod({h}, 100000) / 1000 AS {kind})"
        return _MAKERS[kind].replace("{h}", h)
    match kind["type"]:
        case "struct":
            parts = [f"'{field['name']}', {maker(field['type'], salt + field['name'])}" for field in kind["fields"]]
            made = f"named_struct({', '.join(parts)})"
        case "array":
            item = kind["elementType"]
            made = f"array({maker(item, salt + '0')}, NULL, {maker(item, salt + '1')})"
        case _:
            made = f"map('k', {maker(kind['valueType'], salt + 'k')}, 'l', NULL)"
    return f"IF(pmod({h}, 6) = 0, NULL, {made})"


def paths(kind: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return every field in a type with its path in SQL, itself first, and its type."""
    if isinstance(kind, str):
        return
    match kind["type"]:
        case "struct":
            for field in kind["fields"]:
                here = (*prefix, field["name"])
                yield here, field["type"]
                yield from paths(field["type"], here)
        case "array":
            yield from paths(kind["elementType"], (*prefix, "element"))
        case _:
            yield from paths(kind["valueType"], (*prefix, "value"))


def literal(value: str | None) -> str:
    """Return plain text, or null, in SQL."""
    if value is None:
        return "CAST(NULL AS STRING)"
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
