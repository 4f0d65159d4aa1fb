"""Names of Delta tables: those in AWS Glue, which knows where a table is. Its log decides everything else."""

from typing import Final

from typing_extensions import override

from tailer.formats.port import TableNames
from tailer.stores import glue
from tailer.stores.stores import Stores, check_client

__all__ = ["NAMES"]


class _GlueNames(TableNames):
    scheme = "glue"
    table_format = "delta"
    is_log = False
    missing = (
        "Glue has no such table",
        "Check the names of the database and the table, the region, and which account the keys are of.",
    )

    @override
    def parse(self, text: str, where: str) -> str:
        return glue.parse_name(text, where)

    @override
    def check_client(self, name: str) -> None:
        check_client(name)

    @override
    async def find(self, name: str, stores: Stores) -> str | None:
        return await glue.find_location(name, stores.glue_options(name))

    @override
    async def tables(self, folder: str, pattern: str, stores: Stores) -> list[str]:
        return await glue.list_tables(folder, stores.glue_options(folder))


NAMES: Final[TableNames] = _GlueNames()
