"""Options of the command line: each one misspelled is named with the right one."""

from collections.abc import Iterator

import click
import pytest

from tailer.cli import tailer


def options(command: click.Command, path: str) -> Iterator[tuple[click.Command, str, str]]:
    """Yield each command below `command` with its path, and each of its long options."""
    with click.Context(command, info_name=path) as context:
        for parameter in command.params:
            yield from ((command, path, name) for name in parameter.opts if name.startswith("--"))
        if isinstance(command, click.Group):
            for verb in command.list_commands(context):
                inner = command.get_command(context, verb)
                assert inner is not None
                yield from options(inner, f"{path} {verb}")


def test_a_misspelled_option_is_named_with_the_right_one() -> None:
    found = list(options(tailer, "tailer"))
    assert len(found) > 30
    for command, path, name in found:
        middle = next(at for at in range(len(name) // 2, -1, -1) if name[at] != name[at + 1])
        word = name[:middle] + name[middle + 1] + name[middle] + name[middle + 2 :]
        with pytest.raises(click.NoSuchOption) as raised:
            command.make_context(path, [word])
        assert word in raised.value.message
        assert name in (raised.value.possibilities or []), (path, word)
