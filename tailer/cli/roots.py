"""The option `--allow-root` of verbs that read a table."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from tailer.stores.location import parse_location

__all__ = ["allow_root", "locations"]

_OPTION: Final = "--allow-root"

allow_root: Final = click.option(
    _OPTION,
    "allowed_roots",
    multiple=True,
    metavar="FOLDER",
    help="A folder outside of TABLE that its files may be in, such as the origin of a shallow clone. May be repeated.",
)


def locations(roots: Iterable[str]) -> tuple[str, ...]:
    """Return the locations that the option names. Raises `ConfigError`."""
    return tuple(parse_location(root, Path.cwd(), _OPTION) for root in roots)
