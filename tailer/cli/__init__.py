"""The verbs of the command line, about one module each, imported when used: `tailer --help` stays fast."""

from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem

from tailer.errors import did_you_mean

__all__ = ["VERBS", "tailer"]

VERBS: Final = {
    "doctor": "Say what following a table will mean.",
    "history": "Show what each commit of a table did.",
    "tail": "Show a table's changes as they are committed.",
    "run": "Run the pipelines of a configuration.",
    "status": "Show what the running daemon is doing.",
    "pause": "Pause a pipeline of the running daemon.",
    "resume": "Let a paused or stopped pipeline run again.",
    "resnapshot": "Let a pipeline deliver all rows once, in place of changes.",
    "backfill": "Let a pipeline deliver rows of a version again.",
    "skip": "Let a pipeline go on after lost changes.",
    "check": "Check a configuration without touching any table.",
    "verify": "Prove that a mirror equals its source.",
    "plan": "Print what one version changed, file by file.",
    "progress": "Show or set the progress of pipelines.",
}
CONTROL: Final = ("pause", "resume", "resnapshot", "skip")  # in one module, because they differ in a word


class _Verbs(click.Group):
    """A group that knows its verbs by name and imports one when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command `cmd_name`."""
        if cmd_name not in VERBS:
            return None
        module = import_module(f"{__name__}.{'control' if cmd_name in CONTROL else cmd_name}")
        command: click.Command = module.commands[cmd_name] if cmd_name in CONTROL else module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` begin with. Raises `click.UsageError` with a similar verb."""
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. {did_you_mean(args[0], VERBS)}".rstrip())
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the verbs and options that begin with `incomplete`, without importing a verb."""
        verbs = [CompletionItem(verb, help=purpose) for verb, purpose in VERBS.items() if verb.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview of verbs without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="lake-tailer", prog_name="lake-tailer", message="%(prog)s %(version)s")
def tailer() -> None:
    """Deliver every row-level change of a Delta Lake table, in order, exactly once."""
