"""Latency of a daemon with many tables, and how far failing pipelines hold up others.

`python -m tests.bench.busy_daemon latency TABLES RATE`: local tables that get RATE commits a second together, spread at
random, for half a minute. The time from a commit that is visible to the rows in a file of its pipeline's target, by the
clock of the file system.

`python -m tests.bench.busy_daemon stored TABLES RATE LONGEST_S`: the same of tables in S3, on a server of this machine,
and what the daemon needs and requests while nothing is committed. Tables are looked at every second, and quiet ones
every LONGEST_S seconds.

`python -m tests.bench.busy_daemon isolation PAIRS`: the time in which 37 pipelines deliver a backlog, in turn with
eleven others that have nothing to do, and with eleven that fail (`tests/integration/test_isolation.py`).

`deploy/runbook.md` quotes the figures.
"""

import random
import re
import statistics
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx2

from tests.bench.idle_daemon import cpu_s
from tests.integration.test_isolation import FAILURES, FILE_SINK, HEALTHY, silence
from tests.support.daemon.commands import background
from tests.support.histories.s3_history import upload
from tests.support.s3.server import serving_versitygw
from tests.support.servers.ports import free_ports
from tests.support.streams import Growing
from tests.support.waiting import until

COMMIT_S: Final = 30.0
IDLE_S: Final = 60.0
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


def latency(count: int, rate: int) -> str:
    """Return the percentiles of the latency, and what the daemon needs."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        tables = {f"p{number}": Growing(folder / f"p{number}") for number in range(count)}
        for table in tables.values():
            table.insert_again([1, 2, 3], 1)
        (folder / "tailer.toml").write_text("\n".join(_pipelines(tables)))
        with background("run", folder / "tailer.toml", "-q") as daemon:
            deliver_all(folder, tables)
            time.sleep(5)
            used, began = cpu_s(daemon.pid), time.monotonic()
            commits = list(_commit(tables, rate, began, lambda name, _: tables[name].commit_file().stat().st_ctime))
            deliver_all(folder, tables)
            share = (cpu_s(daemon.pid) - used) / (time.monotonic() - began)
            delays = sorted(_delays(folder, commits))
            daemon.terminate()
            daemon.communicate()
    return _described(count, rate, delays, share)


def _described(count: int, rate: int, delays: list[float], share: float) -> str:
    p50, p99 = (1000 * delays[int(len(delays) * part)] for part in (0.5, 0.99))
    return (
        f"{count} tables, {rate} commits/s: p50 {p50:.0f} ms, p99 {p99:.0f} ms, most {1000 * delays[-1]:.0f} ms "
        f"of {len(delays)} commits; {share:.0%} of a core"
    )


def stored(count: int, rate: int, longest_s: int) -> str:
    """Return the same for tables in S3, after what the daemon needs and requests when idle."""
    with TemporaryDirectory() as place, serving_versitygw(Path(place)) as server:
        folder, bucket = Path(place), server.new_bucket()
        tables = {f"p{number}": Growing(folder / f"p{number}") for number in range(count)}
        for name, table in tables.items():
            table.insert_again([1, 2, 3], 1)
            upload(server, bucket, name, table.path)
        more = f"idle_poll_interval_s = {longest_s}\n"
        (folder / "tailer.toml").write_text("\n".join(_pipelines(tables, f"s3://{bucket}/", more)))
        (port,) = free_ports(1)
        options = {"TAILER_METRICS": f"127.0.0.1:{port}"} | dict(server.environment)
        with background("run", folder / "tailer.toml", "-q", **options) as daemon:
            deliver_all(folder, tables)
            time.sleep(IDLE_S)
            idle = _idle(daemon.pid, f"http://127.0.0.1:{port}", count)

            def commit(name: str, version: int) -> float:
                key = f"{name}/_delta_log/{version:020d}.json"
                server.client.put_object(Bucket=bucket, Key=key, Body=tables[name].commit_file().read_bytes())
                return time.time()

            used, began = cpu_s(daemon.pid), time.monotonic()
            commits = list(_commit(tables, rate, began, commit))
            deliver_all(folder, tables)
            share = (cpu_s(daemon.pid) - used) / (time.monotonic() - began)
            delays = sorted(_delays(folder, commits))
            daemon.terminate()
            daemon.communicate()
    return f"{idle}\n{_described(count, rate, delays, share)}"


def _idle(process: int, url: str, count: int) -> str:
    """Return what a daemon needs and requests in half a minute."""
    used, asked, began = cpu_s(process), _requests(url), time.monotonic()
    time.sleep(COMMIT_S)
    seconds = time.monotonic() - began
    share, requests = (cpu_s(process) - used) / seconds, _requests(url) - asked
    status = Path(f"/proc/{process}/status").read_text()
    resident_mb, threads = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) for name in ("VmRSS", "Threads"))
    return (
        f"{count} quiet tables in S3: {resident_mb // 1024} MB, {threads} threads, {share:.1%} of a core, "
        f"{requests * 3600 / seconds / count:.0f} requests an hour for each table"
    )


def _requests(url: str) -> float:
    """Return the number of requests to all stores."""
    lines = httpx2.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("lake_tailer_store_requests_total{"))


def _commit(
    tables: dict[str, Growing], rate: int, began_s: float, publish: Callable[[str, int], float]
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
        with background("run", folder / "tailer.toml", "-q") as daemon:
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
    measure: dict[str, Callable[..., str]] = {"latency": latency, "stored": stored, "isolation": isolation}
    print(measure[sys.argv[1]](*map(int, sys.argv[2:])))
