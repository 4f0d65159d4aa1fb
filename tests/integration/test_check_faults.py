"""`tailer check --connect` names at once, in its words, whatever `tailer run` would stop at before its first row."""

import json
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import lance
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailer.config.settings import load
from tailer.daemon.checks import connect
from tailer.daemon.serve import serve
from tailer.errors import TailerError
from tailer_sinks.kafka.clients.python_producer import PythonProducer
from tests.support.daemon.commands import tailer
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.drivers import messages_of, producing
from tests.support.kafka.topics import admin, create_topic, unique_name
from tests.support.mirrors.databases import PostgresDatabase
from tests.support.servers.postgres import USER, Postgres

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "country": pa.array(["de", "fr", "de"]),
        "amount": pa.array([1.5, 2.5, 3.5]),
        "address": pa.array([{"city": "Bonn"}] * 3, pa.struct([("city", pa.string())])),
        "tags": pa.array([["a"]] * 3, pa.list_(pa.string())),
    }
)
MIRROR = {"kind": "sql", "url": "sqlite:///shop.db"}
FILES = {"kind": "files", "path": "files/<name>"}
COPY = {"kind": "delta", "path": "delta/<name>", "mode": "mirror"}
KAFKA = {"kind": "kafka", "bootstrap_servers": "<kafka>", "topic": "<topic>-<name>", "create_topics": True}
BY_COUNTRY = KAFKA | {"topic": "<topic>-<name>.{country}", "topics": "<topic>-<name>.*"}
DATABASE = {"kind": "sql", "url": "<postgres>", "schema": "<schema>"}


@dataclass(frozen=True)
class Case:
    """A pipeline with faults, each given by a part of its error and one of its hint."""

    options: Mapping[str, Any]
    faults: Mapping[str, str]
    table: str = "orders"


CASES = {
    "typo": Case({"where": "contry = 'de'"}, {"has no column contry": "Did you mean 'country'?"}),
    "typos": Case(
        {"where": "idd > 1 AND (contry = 'de' OR NOT amout = 1)"},
        {"no column idd": "'id'", "no column contry": "'country'", "no column amout": "'amount'"},
    ),
    "field": Case({"where": "address.town = 'Bonn'"}, {"no column address.town": "It has city"}),
    "text": Case({"where": "country > 3"}, {"string and int have no type in common": "CAST"}),
    "number": Case({"where": "upper(id) = 'A'"}, {"id is bigint, where string is needed": "CAST"}),
    "boolean": Case({"where": "country"}, {"country is string, not boolean": "Write a condition"}),
    "struct": Case({"where": "address = 'Bonn'"}, {"address is struct": "Name a field of it"}),
    "select": Case(
        {"select": "id, contry, upper(nam) AS name"},
        {"no column contry": "'country'", "no column nam": "It has id"},
    ),
    "select_and_keys": Case(
        {
            "select": "id, upper(contry) AS name, country",
            "compute_updates": True,
            "key": ["idd", "name"],
            "sink": MIRROR | {"key": ["id", "nam"]},
        },
        {"no column contry": "'country'", "no column 'idd'": "'id'", "the key column nam is not": "'name'"},
    ),
    # Whoever corrects the name may be right about the key.
    "select_and_its_key": Case(
        {"select": "id, contry", "sink": MIRROR | {"key": ["country", "idd"]}},
        {"no column contry": "'country'", "the key column idd is not": "'id'"},
    ),
    "columns_and_key": Case(
        {"columns": ["id", "amout"], "sink": MIRROR | {"key": ["idd", "country"]}},
        {"no column 'amout'": "'amount'", "the key column idd is not": "'id'"},
    ),
    "excluded": Case({"select": "* EXCLUDE (contry)"}, {"no column contry": "'country'"}),
    "both": Case(
        {"where": "idd = 1", "select": "id, upper(id) AS x"},
        {"where: at version 0": "'id'", "select: at version 0": "CAST"},
    ),
    "void": Case({"select": "id, NULL AS note"}, {"a null needs a type": "CAST(NULL AS STRING) AS note"}),
    "columns": Case(
        {"columns": ["id", "contry", "amout"]}, {"no column 'contry'": "'country'", "no column 'amout'": "'amount'"}
    ),
    "path": Case({"columns": ["id", "country:$.a"]}, {"country is string, not VARIANT": "without a path"}),
    "mask": Case({"select": "id, hmac_sha256(amount, 'file:<folder>/key') AS a"}, {"amount is double": "CAST"}),
    "hash": Case({"select": "id, sha2(contry, 256) AS c"}, {"no column contry": "'country'"}),
    "pairs": Case(
        {"compute_updates": True, "key": ["idd", "contry"]},
        {"no column 'idd' at version 0": "'id'", "no column 'contry' at version 0": "'country'"},
    ),
    "selected_key": Case(
        {"select": "id AS number", "compute_updates": True, "key": ["id"]}, {"no column 'id'": "are: number"}
    ),
    "condition_and_key": Case(
        {"where": "idd = 1", "compute_updates": True, "key": ["idd"]},
        {"no column idd": "'id'", "no column 'idd'": "'id'"},
    ),
    "sql_key": Case(
        {"where": "idd = 1", "sink": MIRROR | {"key": ["idd", "tags", "amount"]}},
        {
            "no column idd": "'id'",
            "the key column idd is not a column": "Did you mean 'id'?",
            "the key column tags has type": "other types",
            "the key column amount has type": "other types",
        },
    ),
    "sql_without_key": Case({"sink": MIRROR}, {"has no key": "Add key to the sink"}),
    "sql_row_ids": Case({"row_ids": True, "sink": MIRROR}, {"has no key": "if the table tracks rows"}),
    "delta_row_ids": Case({"row_ids": True, "sink": COPY}, {"has no key": "if the table tracks rows"}),
    "sql_taken": Case({"sink": MIRROR | {"table": "theirs", "key": ["id"]}}, {"a table theirs": "another name"}),
    "sql_adopted": Case(
        {"columns": ["id", "country"], "sink": MIRROR | {"table": "theirs", "key": ["id"], "adopt": True}},
        {"theirs has no column country": "ADD COLUMN", "no unique index on the key, id": "CREATE UNIQUE INDEX"},
    ),
    "sql_name": Case(
        {"select": "id, country AS lake_tailer_x, country AS lake_tailer_y", "sink": MIRROR | {"key": ["id"]}},
        {"column lake_tailer_x": "with select", "column lake_tailer_y": "with select"},
    ),
    "log_name": Case(
        {"select": "id, country AS _task", "sink": MIRROR | {"mode": "append"}}, {"column _task": "with select"}
    ),
    "denied": Case({"sink": DATABASE | {"key": ["id"]}}, {"permission denied": ""}),
    "delta_key": Case(
        {"sink": COPY | {"key": ["idd", "amount"]}},
        {"the key column idd is not a column": "'id'", "the key column amount has type double": "other types"},
    ),
    "delta_without_key": Case({"sink": COPY}, {"has no key": "Add key to the sink"}),
    "delta_partition": Case(
        {"sink": COPY | {"key": ["id"], "partition_by": ["amount"]}}, {"cannot have this partitioning": "string, date"}
    ),
    "partitioned": Case(
        {"sink": {"kind": "delta", "path": "partitioned", "partition_by": ["id"], "adopt": True}},
        {"is partitioned by country": "Set partition_by to that"},
    ),
    "other_types": Case(
        {"sink": {"kind": "delta", "path": "other_types", "adopt": True}}, {"do not fit: id": "a new path"}
    ),
    "foreign": Case({"sink": {"kind": "delta", "path": "foreign"}}, {"foreign": "Choose another path"}),
    "route": Case(
        {"sink": BY_COUNTRY | {"topic": "<topic>-<name>.{contry}"}}, {"the rows have no column contry": "in topic"}
    ),
    "route_type": Case(
        {"sink": BY_COUNTRY | {"topic": "<topic>-<name>.{amount}"}}, {"which names the topic, has type double": "text"}
    ),
    "route_and_key": Case(
        {"where": "idd = 1", "sink": BY_COUNTRY | {"topic": "<topic>-<name>.{contry}", "key": ["idd"]}},
        {"no column idd": "'id'", "no column 'idd'": "'id'", "no column contry": "in topic"},
    ),
    "route_hidden": Case({"select": "id", "sink": BY_COUNTRY}, {"the rows have no column country": "among columns"}),
    "no_topic": Case(
        {"sink": KAFKA | {"create_topics": False, "progress_topic": "<topic>-<name>-p"}},
        {"there is no topic": "create_topics"},
    ),
    "compacted": Case({"sink": KAFKA}, {"is compacted: only messages with a key": "or give key"}),
    "compacted_too": Case({"sink": KAFKA | {"envelope": "debezium"}}, {"is compacted": "cleanup.policy=delete"}),
    "used_topic": Case({"sink": KAFKA}, {"has messages": "shared_topic"}),
    "registry": Case(
        {"sink": KAFKA | {"encoding": "avro", "registry_url": "http://127.0.0.1:1"}}, {"cannot be reached": ""}
    ),
    "endpoint": Case({"sink": {"kind": "http", "url": "http://127.0.0.1:1/"}}, {"cannot be reached": ""}),
    "start": Case({"start": "7"}, {"version 7": ""}),
    "lance_where": Case({"where": "contry = 'de'"}, {"no column contry": "'country'"}, "dataset"),
    "lance_key": Case(
        {"where": "country = 1", "sink": MIRROR | {"key": ["idd"]}},
        {"no type in common": "CAST", "the key column idd": "'id'"},
        "dataset",
    ),
}
# What `tailer run` tries again, or begins again by itself.
RETRIED = {"denied", "registry", "endpoint"}


@dataclass(frozen=True)
class Shop:
    """A folder with tables and targets, for a configuration of all cases."""

    folder: Path
    topic: str
    servers: str
    database: PostgresDatabase

    def configured(self, names: Collection[str]) -> Path:
        """Write a configuration of some cases."""
        texts = {"topic": self.topic, "kafka": self.servers, "schema": self.database.schema, "folder": str(self.folder)}
        texts["postgres"] = self.database.options["url"].replace(f"{USER}@", "reader@")
        lines = ['state_table = "state"', 'control = ""']
        for name in names:
            options = {"table": CASES[name].table, "sink": FILES, **CASES[name].options}
            table = [f"[pipelines.{name}]", *(f"{key} = {_toml(value)}" for key, value in options.items())]
            lines += [each.replace("<name>", name) for each in table]
        text = "\n".join(lines)
        for mark, value in texts.items():
            text = text.replace(f"<{mark}>", value)
        config = self.folder / "tailer.toml"
        config.write_text(text)
        return config

    def state(self) -> tuple[Any, ...]:
        """Return what is in the folder, in the database and in the broker."""
        files = {str(each): each.read_bytes() for each in self.folder.rglob("*") if each.is_file()}
        with admin(self.servers) as client:
            topics = sorted(each for each in client.list_topics() if each.startswith(self.topic))
        return files, self.database.tables(), topics


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaCluster, postgres: Postgres) -> Shop:
    folder, topic, servers = tmp_path_factory.mktemp("shop"), unique_name("shop"), kafka.bootstrap_servers
    write_deltalake(folder / "orders", ROWS)
    lance.write_dataset(ROWS, folder / "dataset")
    write_deltalake(folder / "partitioned", ROWS.select(["id", "country"]), partition_by="country")
    for name in ("other_types", "foreign"):
        write_deltalake(folder / name, pa.table({"id": ["one"]}))
    (folder / "key").write_text("a key of 32 characters, at least.")
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    used = create_topic(servers, f"{topic}-used_topic")
    for name, policy in (("compacted", "compact"), ("compacted_too", "compact,delete")):
        create_topic(servers, f"{topic}-{name}", configs={"cleanup.policy": policy})
    with producing(PythonProducer, servers, unique_name("others")) as producer:
        producer.begin()
        producer.send(used, messages_of([b"theirs"]), partition=0)
        producer.commit()
    database = PostgresDatabase(postgres)
    database.query("CREATE ROLE reader LOGIN")
    database.query(f"GRANT USAGE ON SCHEMA {database.schema} TO reader")
    return Shop(folder, topic, servers, database)


def test_all_faults_are_named_at_once_and_nothing_is_touched(shop: Shop) -> None:
    config = shop.configured(CASES)
    before = shop.state()
    done = tailer("check", "--connect", "--config", config)
    assert done.stderr == ""
    assert shop.state() == before
    named = _by_pipeline(done.stdout)
    assert set(named) == set(CASES)
    for name, case in CASES.items():
        assert len(named[name]) == len(case.faults), named[name]
        for reason, hint in case.faults.items():
            (text,) = (each for each in named[name] if reason in each)
            assert hint in text
    assert done.stdout.splitlines()[-1].endswith(f": {sum(len(case.faults) for case in CASES.values())} faults")


def test_the_words_are_those_with_which_run_stops(shop: Shop) -> None:
    settings = load(shop.configured(CASES.keys() - RETRIED))
    known = {
        name: {(str(each), each.hint) for each in found.errors} for name, found in anyio.run(connect, settings).items()
    }
    with pytest.raises(ExceptionGroup) as stopped:
        anyio.run(serve, settings)
    stops = {error.__notes__[0]: error for error in stopped.value.exceptions}
    assert set(stops) == set(known)
    for name, error in stops.items():
        assert isinstance(error, TailerError)
        assert (str(error), error.hint) in known[name], name


def _by_pipeline(output: str) -> dict[str, list[str]]:
    """Return the faults of each pipeline, each with its hint."""
    named: dict[str, list[str]] = {}
    faults: list[str] = []
    for line in output.splitlines()[:-1]:
        if line.startswith("failed pipeline "):
            faults = named.setdefault(line.split()[2].removesuffix(":"), [])
        elif line.strip().startswith("hint: "):
            faults[-1] += f" {line.strip()}"
        else:
            faults.append(line.strip())
    return named
