"""Configuration files: settings, or faults with a key and a text; never both, never neither."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tailer.config.settings import examine
from tests.fuzz.target import Target

_SINKS: Final = (
    'kind = "kafka"\nbootstrap_servers = "h:1"\ntopic = "t"\npartitions = 3\n',
    'kind = "files"\npath = "out"\n',
    'kind = "delta"\npath = "s3://b/t"\n',
    'kind = "sql"\nurl = "sqlite:///x.db"\ntable = "t"\n',
)
_HEAD: Final = '[stores."s3://b"]\nregion = "r"\n[defaults]\npoll_interval_s = 2.5\nkey = ["id"]\n[spark]\n'
_PIPELINE: Final = '[pipelines.p]\ntable = "t"\nstart = 12\ncompute_updates = true\nwhere = "i > 1"\nselect = "i"\n'


def _seeds() -> list[bytes]:
    return [f"{_HEAD}{_PIPELINE}[pipelines.p.sink]\n{sink}".encode() for sink in _SINKS]


def _run(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tailer.toml"
        path.write_bytes(data)
        findings = examine(path)
    assert (findings.settings is None) == bool(findings.problems)
    for problem in findings.problems:
        assert str(problem.error)


TARGET = Target(
    _run,
    _seeds,
    tuple(f"tailer.config.{name}" for name in ("settings", "file", "options", "shapes", "pipelines", "tables")),
)
