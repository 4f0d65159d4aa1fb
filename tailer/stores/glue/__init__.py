"""The Data Catalog of AWS Glue, which knows the locations of tables by name: `glue://DATABASE/TABLE`.

Only the location comes from the catalog. Everything else of a table, its id too, comes from the table's own log. The
client comes with the extra `s3`, and is imported when it is used.
"""

from tailer.errors import missing_client
from tailer.stores.glue.names import GlueOptions, check_prefix, is_named, parse_name
from tailer.stores.port import in_thread

__all__ = ["GlueOptions", "check_prefix", "find_location", "is_named", "list_tables", "parse_name"]


async def find_location(name: str, options: GlueOptions) -> str | None:
    """Return the location of the Delta table with this name; None: the catalog has no such table.

    Raises `NotATable` for a table of another kind, or without a location that can be read; `StorageError` where Glue
    refuses or does not answer; `ConfigError` where the extra `s3` is not installed.
    """
    await in_thread(_import_client, name)
    from tailer.stores.glue import catalog  # noqa: PLC0415 - an extra

    return await catalog.find_location(name, options)


async def list_tables(database: str, options: GlueOptions) -> list[str]:
    """Return the names of the Delta tables of a database, `glue://DATABASE`, below it.

    Raises `ObjectNotFound` where there is no such database, and otherwise as `find_location`.
    """
    await in_thread(_import_client, database)
    from tailer.stores.glue import catalog  # noqa: PLC0415 - an extra

    return await catalog.list_tables(database, options)


def _import_client(name: str) -> None:
    """Import the client, which takes a second."""
    try:
        from tailer.stores.glue import catalog  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise missing_client("s3", name, error) from error
