"""Options of verbs that read a table, and the completion of folders and places in a shell."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from tailer.config.tables import TableRef
from tailer.formats.registry import parse_table
from tailer.start import StartKind
from tailer.stores.location import parse_location

__all__ = ["allow_root", "choose_branch", "choose_format", "folders", "places", "table_ref"]

_OPTION: Final = "--allow-root"

allow_root: Final = click.option(
    _OPTION,
    "allowed_roots",
    multiple=True,
    metavar="FOLDER",
    help="A folder outside of TABLE that its files may be in, such as the origin of a shallow clone. May be repeated.",
)

choose_format: Final = click.option(
    "--table-format",
    metavar="NAME",
    help="The table's format, such as delta. Default: found by looking at a folder; in a store, by the folder's name.",
)

choose_branch: Final = click.option("--branch", metavar="NAME", help="A branch of the table. Default: the main one.")


def table_ref(table: str, table_format: str | None, branch: str | None, allowed_roots: Iterable[str]) -> TableRef:
    """Return the table that the argument TABLE and these options name. Raises `ConfigError`."""
    location = parse_table(table, Path.cwd(), "TABLE")
    roots = tuple(parse_location(root, Path.cwd(), _OPTION) for root in allowed_roots)
    return TableRef(location, table_format, branch, roots).checked()


Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def folders(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ask the shell for folders that begin with `incomplete`."""
    return [CompletionItem(incomplete, type="dir")]


def places(*kinds: StartKind) -> Completion:
    """Offer the words of `kinds`; versions and timestamps are for the user to type."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(kind.value) for kind in kinds if kind.value.startswith(incomplete)]

    return complete
