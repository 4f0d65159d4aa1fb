"""Changes of some types: those of a pipeline, of the Python API and of `tail` are the rows of all changes, filtered."""

import json
import random
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import tailer as lake
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.settings import load
from tailer.config.shapes import ReadOptions
from tailer.config.tables import TableRef
from tailer.daemon.fleet.backfills import check_verb
from tailer.engine.local import LocalEngine
from tailer.errors import CommitUnknown, ConfigError, SinkUnavailable, TailerError
from tailer.events import ChangeWord
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.start import Start
from tailer.stores.wakeup import TimerWake
from tailer_sinks.memory import MemoryDestination, MemorySink
from tailer_sinks.testing import Fault, FaultySink, Kind, Step
from tests.support.daemon.commands import tailer
from tests.support.seeds import seeds

IMAGES: Final = {"update_preimage", "update_postimage"}
CHOICES: Final = (["insert"], ["delete"], ["update"], ["insert", "update_postimage", "delete"], ["update_preimage"])
OPTIONS: Final[dict[str, Any]] = {"where": "n < 7", "compute_updates": True, "key": ["id"]}


def meant(words: list[str]) -> set[str]:
    """Return the change types that the words mean."""
    return set().union(*(IMAGES if word == "update" else {word} for word in words))


def history(path: Path, chance: random.Random, *, feed: bool) -> None:
    """Write versions with inserts, updates that enter and leave the condition, deletes, and mixtures of them."""
    numbers, config = count(), {"delta.enableChangeDataFeed": str(feed).lower()}
    for _ in range(12):
        rows = [(next(numbers), chance.randrange(10)) for _ in range(chance.randrange(1, 40))]
        table = pa.table({"id": [row[0] for row in rows], "n": [row[1] for row in rows]})
        write_deltalake(path, table, mode="append", configuration=config)
        if chance.random() < 0.7:
            DeltaTable(path).update(
                {"n": f"(n + {chance.randrange(10)}) % 10"}, predicate=f"id % 3 = {chance.randrange(3)}"
            )
        if chance.random() < 0.5:
            DeltaTable(path).delete(f"id % 5 = {chance.randrange(5)}")


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    """Return changes as rows, each without the moment."""
    return [
        {name: value for name, value in row.items() if name != "_commit_timestamp"}
        for batch in lake.changes(path, **OPTIONS, **options)
        for row in batch.to_pylist()
    ]


async def delivered(path: Path, words: list[str], chance: random.Random) -> list[dict[str, Any]]:
    """Deliver by a pipeline whose transactions are short, and of which some fail before or after they count."""
    read = ReadOptions(types=[ChangeWord(word) for word in words], **OPTIONS)
    destination, start, end = MemoryDestination(), Start.parse("earliest"), Start.parse("latest")
    table, limits = TableRef(str(path)), Limits(max_rows=chance.randint(1, 30), retry_for_s=0.0)
    for attempt in range(200):
        fault = Fault(Step.COMMIT, Kind.FAIL, nth=chance.randint(1, 6), after=chance.random() < 0.5)
        sink = FaultySink(MemorySink("memory", destination), *([fault] if attempt < 20 else []))
        engine = ChangelogEngine(LocalEngine(), PairingRules(compute_updates=True, key=("id",)))
        try:
            log = table.open(policy=read.policy())
            await row_pipeline("p", log, sink, engine, TimerWake(), start, end, read.policy(), limits).run()
        except (SinkUnavailable, CommitUnknown):
            continue
        (app_id,) = destination.progress
        return [
            {name: value for name, value in row.items() if name != "_commit_timestamp"}
            for row in destination.rows(app_id)
        ]
    pytest.fail("the pipeline does not come to its end")


@pytest.mark.parametrize("seed", seeds(2))
def test_the_rows_are_those_of_all_changes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    history(tmp_path / "t", chance, feed=bool(seed % 2))
    everything = rows_of(tmp_path / "t")
    assert {row["_change_type"] for row in everything} == {"insert", "delete", *IMAGES}
    for words in CHOICES:
        wanted = [row for row in everything if row["_change_type"] in meant(words)]
        assert rows_of(tmp_path / "t", types=words) == wanted
        assert anyio.run(delivered, tmp_path / "t", words, chance) == wanted


def test_net_changes_of_a_type(tmp_path: Path) -> None:
    history(tmp_path / "t", random.Random(1), feed=False)
    everything = rows_of(tmp_path / "t", net=True)
    assert {row["_change_type"] for row in everything} == {"insert"}
    assert rows_of(tmp_path / "t", net=True, types=["insert"]) == everything
    assert rows_of(tmp_path / "t", net=True, types=["delete"]) == []


REFUSED: Final = {
    "types = []": ("types", "is empty"),
    'types = ["remove"]': ("types", "must be a list of 'insert', 'update', 'delete'"),
    'types = ["delete"]\nstart = "snapshot"': ("start", "the rows of a snapshot are inserts"),
    'types = ["update"]\non_data_loss = "resnapshot"': ("on_data_loss", "the rows of a snapshot are inserts"),
    'types = ["delete"]\nsink = {kind = "sql", url = "sqlite:///m.db", key = ["id"]}': ("types", "a mirror needs"),
    'types = ["update_preimage"]\nsink = {kind = "kafka", bootstrap_servers = "h:1", key = ["id"]}': (
        "types",
        "its readers need both",
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_types_that_cannot_be_delivered_are_refused_by_name(tmp_path: Path, text: str) -> None:
    sink = "" if "sink" in text else 'sink = {kind = "files", path = "out"}\n'
    (tmp_path / "tailer.toml").write_text(f'[pipelines.p]\ntable = "t"\n{sink}{text}\n')
    with pytest.raises(ExceptionGroup) as caught:
        load(tmp_path / "tailer.toml")
    (fault,) = caught.value.exceptions
    assert isinstance(fault, TailerError)
    option, reason = REFUSED[text]
    assert f"pipelines.p.{option}" in str(fault)
    assert reason in str(fault)
    assert fault.hint
    assert '["a"]' not in fault.hint


def test_the_daemon_delivers_deletes_alone(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1, 2, 3]}))
    DeltaTable(tmp_path / "t").delete("id = 2")
    sink = 'sink = {kind = "files", path = "out"}'
    (tmp_path / "tailer.toml").write_text(f'[pipelines.p]\ntable = "t"\ntypes = ["delete"]\n{sink}\n')
    told = tailer("check", "--config", tmp_path / "tailer.toml")
    assert told.returncode == 0, told.stderr
    shown = tailer("tail", tmp_path / "t", "--from", "earliest", "--to", "latest", "--type", "delete")
    assert [json.loads(line)["id"] for line in shown.stdout.splitlines()] == [2]
    refused = tailer("verify", "p", "--config", tmp_path / "tailer.toml")
    assert "leaves out some types of changes" in refused.stderr


@pytest.mark.parametrize("verb", ["resnapshot", "backfill", "skip"])
def test_commands_that_need_inserts_are_refused_without_them(tmp_path: Path, verb: str) -> None:
    text = '[pipelines.p]\ntable = "t"\ntypes = ["delete"]\nsink = {kind = "files", path = "out"}\n'
    (tmp_path / "tailer.toml").write_text(text)
    (pipeline,) = load(tmp_path / "tailer.toml").pipelines
    if verb == "skip":
        check_verb(pipeline, verb)
        return
    with pytest.raises(ConfigError, match="delivers no inserts") as caught:
        check_verb(pipeline, verb)
    assert "`tailer skip p`" in caught.value.hint_for("p")
