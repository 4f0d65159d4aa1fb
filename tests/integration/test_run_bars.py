"""Progress bars of `tailer run`, in a real terminal."""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailer.cli.display.bars import AFTER_S
from tests.support.daemon.commands import in_terminal, tailer
from tests.support.servers.endpoint import Answer, serving

ROWS: Final = 3


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """A version into an endpoint that takes its time, and one that nobody can read, at which the daemon ends."""
    write_deltalake(tmp_path / "orders", pa.table({"id": pa.array(range(ROWS), pa.int64())}))
    features = {"readerFeatures": ["telepathy"], "writerFeatures": ["telepathy"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}
    (tmp_path / "orders" / "_delta_log" / f"{1:020d}.json").write_text(json.dumps(protocol) + "\n")
    config = tmp_path / "t.toml"
    with serving() as endpoint:
        endpoint.answer = lambda _body: Answer(before=partial(time.sleep, 4 * AFTER_S))
        sink = f'{{kind = "http", url = "{endpoint.url}"}}'
        config.write_text(f'control = ""\nstate_table = "state"\n[pipelines.copy]\ntable = "orders"\nsink = {sink}')
        yield config


def test_a_long_backlog_has_a_bar_and_the_log_stays_whole(config: Path) -> None:
    code, text = in_terminal("run", "--config", config, "-v")
    assert code == 3
    assert "copy: catching up, versions" in text
    assert f"copy: delivered up to version 0 ({ROWS} rows)" in text
    assert "Upgrade lake-tailer, or drop the feature from the table" in text


@pytest.mark.long
def test_there_is_none_without_a_terminal_or_with_quiet(config: Path) -> None:
    assert "catching up" not in tailer("run", "--config", config, "--log-format", "text").stderr
    (config.parent / "state").rename(config.parent / "before")
    assert "catching up" not in in_terminal("run", "--config", config, "-q")[1]
