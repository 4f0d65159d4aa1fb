"""Orders name the configuration and the pipeline in either order."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailer.cli.control import commands
from tailer.errors import ConfigError


@pytest.mark.parametrize("verb", commands)
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("c/nosuch.toml", "ok"), "c/nosuch.toml"),
        (("ok", "c/nosuch.toml"), "c/nosuch.toml"),
        (("there", "ok"), "there"),
        (("ok", "there"), "there"),
        (("there.toml", "nosuch"), "there.toml"),
        (("sales/a.toml", "b.toml"), "b.toml"),
        (("ok", "folder"), "folder"),
        (("folder", "ok.toml"), "ok.toml"),
    ],
)
def test_the_configuration_is_named_in_either_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, arguments: Sequence[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for each in ("there", "there.toml"):
        (tmp_path / each).write_text("no configuration")
    with pytest.raises((ConfigError, ExceptionGroup)) as raised:
        commands[verb].main(list(arguments), standalone_mode=False)
    errors = raised.value.exceptions if isinstance(raised.value, ExceptionGroup) else [raised.value]
    assert str(errors[0]).startswith(f"{named}: ")
