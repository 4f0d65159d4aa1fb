"""The verbs of the command line, about one module each, imported when used: `tailer --help` stays fast."""

from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem

from tailer.errors import did_you_mean

__all__ = ["FIRST_STEPS", "GUIDE", "VERBS", "tailer"]

GUIDE: Final = {  # of each verb: what it does, an example, and the page of docs/ that has more
    "doctor": ("Say what following a table will mean.", "s3://lake/shop/orders", "doctor.md"),
    "history": ("Show what each commit of a table did.", "orders --from 2026-03-01", "history.md"),
    "tail": ("Show a table's changes as they are committed.", 'orders --from 0 --where "amount > 100"', "tail.md"),
    "run": ("Run the pipelines of a configuration.", "--config /etc/lake-tailer/tailer.toml", "operations.md"),
    "status": ("Show what the running daemon is doing.", "--json", "operations.md"),
    "pause": ("Pause a pipeline of the running daemon.", "orders", "operations.md"),
    "resume": ("Let a paused or stopped pipeline run again.", "orders", "operations.md"),
    "resnapshot": ("Let a pipeline deliver all rows once, in place of changes.", "orders", "after_a_loss.md"),
    "backfill": ("Let a pipeline deliver rows of a version again.", "orders --where \"country = 'DE'\"", "backfill.md"),
    "skip": ("Let a pipeline go on after lost changes.", "orders", "after_a_loss.md"),
    "check": ("Check a configuration without touching any table.", "--connect", "operations.md"),
    "verify": ("Prove that a mirror equals its source.", "orders --limit 5", "verify.md"),
    "plan": ("Print what one version changed, file by file.", "orders 12", "operations.md"),
    "progress": ("Show or set the progress of pipelines.", "show", "operations.md"),
}
VERBS: Final = {verb: purpose for verb, (purpose, _, _) in GUIDE.items()}
FIRST_STEPS: Final = (
    ("tailer doctor TABLE", "what following your table will mean, and a configuration for it"),
    ("tailer tail TABLE --from earliest", "its changes, here on the terminal"),
    ("tailer run", "deliver them, as ./tailer.toml says"),
)
CONTROL: Final = ("pause", "resume", "resnapshot", "skip")  # in one module, because they differ in a word


class _Verbs(click.Group):
    """A group that knows its verbs by name and imports one when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = import_module(f"{__name__}.{'control' if cmd_name in CONTROL else cmd_name}")
        command: click.Command = module.commands[cmd_name] if cmd_name in CONTROL else module.command
        command.epilog = "\b\nExample: tailer {} {}\nMore: docs/{}".format(cmd_name, *GUIDE[cmd_name][1:])
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
        """Write the first steps, and the overview of verbs without importing one."""
        with formatter.section("Begin with"):
            formatter.write_dl(FIRST_STEPS, col_max=36)
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="lake-tailer", prog_name="lake-tailer", message="%(prog)s %(version)s")
def tailer() -> None:
    """Deliver every row-level change of a Delta Lake, Iceberg or Lance table, in order, exactly once."""
