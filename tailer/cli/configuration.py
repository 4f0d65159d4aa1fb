"""The option `--config` of all verbs that need a configuration."""

import os
import shlex
from itertools import chain
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from tailer.cli.outcome import CHOSEN
from tailer.config.pipelines import PipelineSettings, Settings
from tailer.errors import ConfigError, did_you_mean

__all__ = ["ConfiguredCommand", "choose_config", "choose_pipeline", "is_given"]

_NAME: Final = "config"
_OPTION: Final = "--config"
_SUFFIX: Final = ".toml"

choose_config: Final = click.option(
    "-c",
    _OPTION,
    _NAME,
    type=click.Path(path_type=Path, readable=False),
    default="tailer.toml",
    show_default=True,
    help="The configuration.",
)


class ConfiguredCommand(click.Command):
    """A command with `choose_config`. Of a configuration that is given as an argument, it says how to write it."""

    allow_extra_args = True  # they are refused below

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`. Raises `ConfigError`."""
        words = tuple(args)
        extra = super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            return extra
        given = [str(ctx.params[param.name]) for param in self.params if isinstance(param, click.Argument)]
        misplaced = None
        if not is_given(ctx):  # by its suffix, or as a file that no argument takes; `Path.is_file` may raise
            named = (word for word in (*extra, *given) if word.endswith(_SUFFIX))
            misplaced = next(chain(named, filter(os.path.isfile, extra)), None)
        if misplaced is not None:
            others = list(words)
            others.remove(misplaced)
            command = shlex.join([*ctx.command_path.split(), *others, _OPTION, misplaced])
            raise ConfigError(misplaced, f"a configuration is given by the option {_OPTION}", f"Write `{command}`.")
        if extra:
            ctx.fail(f"Got unexpected extra argument{'s' * (len(extra) > 1)} ({' '.join(extra)})")
        ctx.meta[CHOSEN] = ctx.params.get("pipeline") or ""
        return extra


def is_given(ctx: click.Context) -> bool:
    """Return whether the command line names a configuration."""
    return ctx.get_parameter_source(_NAME) is ParameterSource.COMMANDLINE


def choose_pipeline(settings: Settings, name: str) -> PipelineSettings:
    """Return the pipeline `name`. Raises `ConfigError`."""
    pipelines = {pipeline.name: pipeline for pipeline in settings.pipelines}
    if name not in pipelines:
        remedy = f"{did_you_mean(name, pipelines)} There are: {', '.join(pipelines)}.".lstrip()
        raise ConfigError("PIPELINE", f"no pipeline {name!r} in {settings.path}", remedy)
    return pipelines[name]
