"""Completion of values in a shell: folders, and places in a table's history."""

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from tailer.start import StartKind

__all__ = ["folders", "places"]

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def folders(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ask the shell for folders that begin with `incomplete`."""
    return [CompletionItem(incomplete, type="dir")]


def places(*kinds: StartKind) -> Completion:
    """Offer the words of `kinds`; versions and timestamps are for the user to type."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(kind.value) for kind in kinds if kind.value.startswith(incomplete)]

    return complete
