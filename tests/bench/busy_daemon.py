"""Latency of a daemon with many tables, and how far failing pipelines hold up others.

A round is half a minute without commits, after a minute that does not count, and half a minute with a steady rate of
commits, spread over all tables at random. Latency is the time from a commit that is visible to its rows in a file of
its pipeline's target, by the clock of the file system. Tables are local, or in S3, on a server of this machine;
commits in S3 may be announced by a queue of SQS, also on this machine. `test_busy.py` measures 500 tables.

`python -m tests.bench.busy_daemon isolation PAIRS`: the time in which 37 pipelines deliver a backlog, in turn with
eleven others that have nothing to do, and with eleven that fail (`tests/integration/test_isolation.py`).

`deploy/runbook.md` quotes the figures.
"""

import random
import statistics
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx2

from tests.bench.idle_daemon import cpu_s
from tests.integration.test_isolation import FAILURES, FILE_SINK, HEALTHY, silence
from tests.support.daemon.commands import background
from tests.support.histories.s3_history import upload
from tests.support.s3.queues import s3_message, serving_sqs
from tests.support.s3.server import serving_versitygw
from tests.support.servers.ports import free_ports
from tests.support.streams import Growing
from tests.support.waiting import until

COMMIT_S: Final = 30.0
IDLE_S: Final = 60.0
Daemon = subprocess.Popen[str]
Publish = Callable[[str, int], float]
"""Publishes a version of a table; returns the time at which it became visible."""
Following = Callable[[Path, dict[str, Growing], dict[str, str]], AbstractContextManager[tuple[Daemon, Publish]]]
"""Runs a daemon over tables, with variables of the environment."""
BACKLOG: Final = 60
OTHERS: Final = {name: failure for name, failure in FAILURES.items() if name != "full"}  # needs a limit for all files


def targets(folder: Path, name: str) -> list[tuple[int, float]]:
    """Return the last version of each file of a target, with the time at which it got its name."""
    files = (folder / "out" / name).rglob("*.jsonl")
    return sorted((int(file.stem.partition("-")[2]), file.stat().st_ctime) for file in files)


def deliver_all(folder: Path, tables: dict[str, Growing]) -> None:
    """Wait until each target has the newest version of its table."""
    for name, table in tables.items():
        until(lambda name=name, table=table: any(last >= table.version for last, _ in targets(folder, name)))  # type: ignore[misc]


@dataclass(frozen=True)
class Load:
    """Measurements of a round: the daemon's needs when idle and when busy, and the latency of commits."""

    idle_share: float  # of a core
    requests: int  # to stores, in an hour for each table, when idle
    request_ms: float  # of CPU for each of them; nearly all are looks for a commit
    rate: float  # commits a second
    busy_share: float
    p50_s: float
    p99_s: float


def measure(count: int, rate: int, rounds: int, following: Following) -> list[Load]:
    """Let a daemon follow so many tables, and return what each round showed."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        tables = {f"p{number}": Growing(folder / f"p{number}") for number in range(count)}
        for table in tables.values():
            table.insert_again([1, 2, 3], 1)
        (port,) = free_ports(1)
        with following(folder, tables, {"TAILER_METRICS": f"127.0.0.1:{port}"}) as (daemon, publish):
            deliver_all(folder, tables)
            found = []
            for _ in range(rounds):
                found.append(_round(daemon.pid, f"http://127.0.0.1:{port}", folder, tables, rate, publish))
                print(found[-1], flush=True)
            daemon.terminate()
            daemon.communicate()
    return found


def _round(process: int, url: str, folder: Path, tables: dict[str, Growing], rate: int, publish: Publish) -> Load:
    time.sleep(IDLE_S)
    used, asked, begun = cpu_s(process), _requests(url), time.monotonic()
    time.sleep(COMMIT_S)
    idle_s, seconds, requests = cpu_s(process) - used, time.monotonic() - begun, _requests(url) - asked
    used, begun = cpu_s(process), time.monotonic()
    commits = list(_commit(tables, rate, begun, publish))
    took_s = time.monotonic() - begun
    deliver_all(folder, tables)
    busy_share = (cpu_s(process) - used) / (time.monotonic() - begun)
    delays = sorted(_delays(folder, commits))
    return Load(
        idle_share=idle_s / seconds,
        requests=round(requests * 3600 / seconds / len(tables)),
        request_ms=1000 * idle_s / requests if requests else 0.0,
        rate=len(commits) / took_s,
        busy_share=busy_share,
        p50_s=delays[len(delays) // 2],
        p99_s=delays[len(delays) * 99 // 100],
    )


@contextmanager
def local(folder: Path, tables: dict[str, Growing], variables: dict[str, str]) -> Iterator[tuple[Daemon, Publish]]:
    """Follow the tables where they are."""
    (folder / "tailer.toml").write_text("\n".join(_pipelines(tables)))
    with background("run", "--config", folder / "tailer.toml", "-q", **variables) as daemon:
        yield daemon, lambda name, _: tables[name].commit_file().stat().st_ctime


def stored(longest_s: int, *, announced: bool = False) -> Following:
    """Follow copies in S3: each is looked at after a second, a quiet one after `longest_s`.

    `announced`: a queue announces commits.
    """

    @contextmanager
    def following(
        folder: Path, tables: dict[str, Growing], variables: dict[str, str]
    ) -> Iterator[tuple[Daemon, Publish]]:
        with ExitStack() as stack:
            server = stack.enter_context(serving_versitygw(folder))
            bucket, lines = server.new_bucket(), []
            for name, table in tables.items():
                upload(server, bucket, name, table.path)
            sender = stack.enter_context(ThreadPoolExecutor(1))
            queue = stack.enter_context(serving_sqs(folder)).new_queue() if announced else None
            if queue is not None:
                lines = [f'[stores.s]\nprefix = "s3://{bucket}"\nnotifications = "{queue.url}"\n']
            more = f"idle_poll_interval_s = {longest_s}\n"
            (folder / "tailer.toml").write_text("\n".join([*lines, *_pipelines(tables, f"s3://{bucket}/", more)]))

            def publish(name: str, version: int) -> float:
                key = f"{name}/_delta_log/{version:020d}.json"
                server.client.put_object(Bucket=bucket, Key=key, Body=tables[name].commit_file().read_bytes())
                visible_s = time.time()
                if queue is not None:
                    sender.submit(queue.send, s3_message(bucket, key))
                return visible_s

            variables = variables | dict(server.environment)
            yield stack.enter_context(background("run", "--config", folder / "tailer.toml", "-q", **variables)), publish

    return following


def _requests(url: str) -> float:
    """Return the number of requests to all stores."""
    lines = httpx2.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("lake_tailer_store_requests_total{"))


def _commit(
    tables: dict[str, Growing], rate: int, began_s: float, publish: Publish
) -> Iterator[tuple[str, int, float]]:
    """Commit at a steady rate to random tables; yield table, version, and the time that `publish` returns."""
    for number in range(int(COMMIT_S * rate)):
        time.sleep(max(0.0, began_s + number / rate - time.monotonic()))
        name = random.choice(list(tables))
        version = tables[name].commit(tables[name].add("again.parquet"))
        yield name, version, publish(name, version)


def _delays(folder: Path, commits: list[tuple[str, int, float]]) -> Iterator[float]:
    found = {name: targets(folder, name) for name, _, _ in commits}
    for name, version, commit_s in commits:
        _, file_s = found[name][bisect_left(found[name], (version, 0.0))]
        yield max(file_s - commit_s, 0.0)


def _pipelines(names: Iterable[str], place: str = "", more: str = "") -> Iterator[str]:
    for name in names:
        yield f'[pipelines.{name}]\ntable = "{place}{name}"\nsink = {{{FILE_SINK.replace("{name}", name)}}}\n{more}'


def isolation(pairs: int) -> str:
    """Return the median of the ratios of times with and without failures."""
    ratios = []
    for number in range(pairs):
        times = {fail: _deliver_backlog(fail) for fail in ((True, False) if number % 2 else (False, True))}
        ratios.append(times[True] / times[False])
        print(f"  {times[False]:.2f} s, with failures {times[True]:.2f} s", flush=True)
    return f"{HEALTHY} pipelines beside eleven that fail: {statistics.median(ratios):.2f} of the time; {pairs} pairs"


def _deliver_backlog(fail: bool) -> float:
    """Return the seconds in which a running daemon delivers versions that all healthy tables get at once."""
    with TemporaryDirectory() as place, silence() as silent:
        folder = Path(place)
        tables = {f"p{number}": Growing(folder / f"p{number}") for number in range(HEALTHY)}
        for table in tables.values():
            table.insert_again(range(1000), 1)
        lines = list(_pipelines(tables))
        for name, failure in OTHERS.items():
            Growing(folder / name).insert_again(range(10), 1)
            if fail:
                failure.harm(folder / name)
            sink = (failure.sink if fail else FILE_SINK).replace("{name}", name).replace("{silent}", silent)
            lines.append(f'[pipelines.{name}]\ntable = "{name}"\nsink = {{{sink}}}\n{failure.more if fail else ""}')
        (folder / "a-file").touch()
        (folder / "strange").mkdir()
        (folder / "strange" / "diary.txt").write_text("dear diary")
        (folder / "tailer.toml").write_text("\n".join(lines))
        with background("run", "--config", folder / "tailer.toml", "-q") as daemon:
            deliver_all(folder, tables)
            time.sleep(2)
            began = time.monotonic()
            for table in tables.values():
                for _ in range(BACKLOG):
                    table.commit(table.add("again.parquet"))
            deliver_all(folder, tables)
            seconds = time.monotonic() - began
            daemon.terminate()
            daemon.communicate()
    return seconds


if __name__ == "__main__":
    print(isolation(int(sys.argv[2])))
