"""The verbs of the command line, one module each, imported when used: `tailer --help` is there at once."""

from importlib import import_module
from typing import Final

import click

__all__ = ["VERBS", "tailer"]

VERBS: Final = {
    "tail": "Show a table's changes as they are committed.",
    "run": "Run the pipelines of a configuration.",
    "check": "Check a configuration without touching any table.",
    "plan": "Print what one version changed, as a plan in JSON.",
    "progress": "Show how far the pipelines are, or set them elsewhere.",
    "demo": "Follow a live Delta table into another, and prove it.",
}


class _Verbs(click.Group):
    """A group that knows its verbs by name and loads one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order an operator meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command `cmd_name`, imported now."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview, without importing a verb."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="lake-tailer", prog_name="lake-tailer", message="%(prog)s %(version)s")
def tailer() -> None:
    """Deliver every row-level change of a Delta Lake table, in order, exactly once."""
