"""Verbs whose answers other programs read, without a daemon: `status`, commands and `progress show`."""

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tailer.cli import control, progress, status, tailer
from tailer.daemon.standing import Standing
from tailer.daemon.status_report import StatusReport, report_of
from tailer.errors import ConfigError, SinkUnavailable
from tailer.pipeline.status import PipelineStatus
from tailer.plan import Position


class Daemon:
    """A daemon with one stopped pipeline, which keeps the commands that it gets."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, str]] = []
        self.pipeline = PipelineStatus("shop")
        self.pipeline.note_stop(SinkUnavailable("s", "down\n\tand\tout"))

    def status(self) -> StatusReport:
        """Return the report."""
        return report_of([self.pipeline], 0, datetime.now(UTC).timestamp())

    def send(self, name: str, verb: str) -> str:
        """Keep a command."""
        self.commands.append((name, verb))
        return "done"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """Answer every command, whatever its configuration."""
    made = Daemon()

    def connection(config: Path, *_: object) -> Daemon:
        assert config.name == "tailer.toml"
        return made

    for module in (control, status):
        monkeypatch.setattr(module, "connection", connection)
    return made


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(tailer, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_status_in_a_pipe_is_one_short_line_for_a_pipeline(daemon: Daemon) -> None:
    header, line = run("status", "--config", "tailer.toml").stdout.splitlines()
    *_, why = line.split("\t")
    assert len(line.split("\t")) == len(header.split("\t"))
    assert why.startswith("SinkUnavailable: s")
    assert why.endswith("down and out")
    assert daemon.pipeline.hint not in line
    (report,) = json.loads(run("status", "--config", "tailer.toml", "--json").stdout)["pipelines"]
    assert (report["hint"], report["seconds_since_progress"]) == (daemon.pipeline.hint, None)


def test_status_on_a_terminal_has_reasons_and_next_steps_below_the_table(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    shown = click.unstyle(run("status", "--config", "tailer.toml").stdout)
    assert max(map(len, shown.splitlines())) <= 80
    table, why, hint = " ".join(shown.split()).partition(f" {daemon.pipeline.name}: SinkUnavailable: s")
    assert daemon.pipeline.name in table
    assert why
    assert hint.endswith(f"down and out hint: {daemon.pipeline.hint}")


@pytest.mark.parametrize("verb", ["pause", "resume", "resnapshot", "skip"])
def test_a_command_names_its_pipeline_and_takes_the_configuration_as_an_option(daemon: Daemon, verb: str) -> None:
    for options in ((), ("--config", "tailer.toml"), ("-c", "tailer.toml"), ("--url", "http://x")):
        run(verb, "shop", *options)
    assert daemon.commands == [("shop", verb)] * 4


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ("run x.toml -v", "tailer run -v --config x.toml"),
        ("check --connect 'my lake.toml'", "tailer check --connect --config 'my lake.toml'"),
        ("status file", "tailer status --config file"),
        ("pause orders x.toml", "tailer pause orders --config x.toml"),
        ("resume x.toml orders", "tailer resume orders --config x.toml"),
        ("backfill orders x.toml --where 'id > 7'", "tailer backfill orders --where 'id > 7' --config x.toml"),
        ("verify x.toml", "tailer verify --config x.toml"),
        ("progress show x.toml", "tailer progress show --config x.toml"),
        ("progress reset x.toml --to 1", "tailer progress reset --to 1 --config x.toml"),
        ("history orders x.toml --pipeline copy", "tailer history orders --pipeline copy --config x.toml"),
    ],
)
def test_a_configuration_that_is_no_option_is_told_how_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as raised:
        CliRunner().invoke(tailer, shlex.split(arguments), catch_exceptions=False)
    assert raised.value.reason == "a configuration is given by the option --config"
    assert raised.value.hint == f"Write `{remedy}`."


@pytest.mark.parametrize("arguments", ["status orders", "run x.toml --config y.toml"])
def test_another_argument_too_many_is_named(arguments: str) -> None:
    done = CliRunner().invoke(tailer, arguments)
    assert done.exit_code == 2
    assert f"Got unexpected extra argument ({arguments.split()[1]})" in done.output


@pytest.mark.parametrize(
    ("position", "delivered", "lag"), [(None, None, None), (Position.end(7), 7, 2), (Position(7, 0, 3), 6, 3)]
)
def test_progress_as_json(
    monkeypatch: pytest.MonkeyPatch, position: Position | None, delivered: int | None, lag: int | None
) -> None:
    async def survey(_settings: object) -> tuple[list[Standing], list[Exception]]:
        return [Standing(pipeline="orders", table="/data/orders", app_id="orders/id", position=position, latest=9)], []

    monkeypatch.setattr(progress, "load", lambda _: None)
    monkeypatch.setattr(progress, "survey", survey)
    found: dict[str, Any] = json.loads(run("progress", "show", "--config", "tailer.toml", "--json").stdout)
    (one,) = found["pipelines"]
    assert (found["format"], one["name"], one["app_id"], one["latest"]) == (1, "orders", "orders/id", 9)
    assert (one["delivered"], one["lag"], one["position"]) == (delivered, lag, position and str(position))
