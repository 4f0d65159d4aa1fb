"""Commands to a running daemon: every verb, while commits go on and the daemon is killed."""

import json
import random
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tailer.daemon.client import DaemonClient
from tailer.errors import ConfigError
from tests.support.daemon.commands import Orders, background, in_terminal, metrics_address, states, tailer
from tests.support.waiting import until

# The client library forgets a Unix socket that nobody serves.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning"),
]

Change = tuple[int, str, int | None]
GAP: Final = (1, "gap", None)


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """A table with one version, followed into a Delta table by the configuration `t.toml` beside it."""
    table = Orders(tmp_path / "orders")
    table.insert(*range(10))
    text = '[pipelines.copy]\ntable = "orders"\npoll_interval_s = 0.1\nsink = {kind = "delta", path = "copy"}'
    (tmp_path / "t.toml").write_text(text)
    return table


@pytest.fixture
def config(orders: Orders) -> Path:
    """The configuration."""
    return orders.path.parent / "t.toml"


@pytest.fixture
def client(config: Path) -> DaemonClient:
    """The client of the daemon."""
    return DaemonClient(socket=config.with_suffix(".sock"))


def copied(orders: Orders) -> list[Change]:
    """Return the rows delivered so far."""
    try:
        return list(orders.copied_to(orders.path.parent / "copy"))
    except TableNotFoundError:
        return []


def state(client: DaemonClient) -> str:
    """Return the state of the pipeline; empty while the daemon does not answer."""
    try:
        return client.status().pipelines[0].state.value
    except ConfigError:
        return ""


def remove_files(table: Path, version: int) -> None:
    """Remove the data files that a version has added, as VACUUM does."""
    for line in (table / "_delta_log" / f"{version:020d}.json").read_text().splitlines():
        if "add" in (action := json.loads(line)):
            (table / action["add"]["path"]).unlink()


def test_pause_and_resume(orders: Orders, config: Path, client: DaemonClient) -> None:
    with background("run", "--config", config):
        until(lambda: copied(orders) == orders.changes)
        assert stat.S_IMODE(config.with_suffix(".sock").stat().st_mode) == 0o600
        done = tailer("pause", "copy", "--config", config)
        assert (done.returncode, done.stdout) == (0, "copy pauses after its transaction\n")
        until(lambda: state(client) == "paused")
        before = orders.changes.copy()
        orders.insert(20)
        time.sleep(1)
        assert copied(orders) == before
        said = tailer("status", "--config", config).stdout.splitlines()
        assert said[0].split("\t")[:2] == ["pipeline", "state"]
        assert said[1].split("\t")[:2] == ["copy", "paused"]
        assert said[1].endswith("\tan operator paused it")
        report: dict[str, Any] = json.loads(tailer("status", "--config", config, "--json").stdout)
        assert (report["pipelines"][0]["state"], report["pipelines"][0]["delivered"]) == ("paused", 0)
        assert tailer("resume", "copy", "--config", config).returncode == 0
        until(lambda: copied(orders) == orders.changes)
        code, shown = in_terminal("status", "--config", config)
        assert (code, "streaming" in shown, "delivered" in shown) == (0, True, True)


def test_a_pause_ends_with_the_process(orders: Orders, config: Path, client: DaemonClient) -> None:
    with background("run", "--config", config) as daemon:
        until(lambda: copied(orders) == orders.changes)
        client.send("copy", "pause")
        until(lambda: state(client) == "paused")
        orders.insert(20)
        daemon.kill()
        daemon.communicate()
    assert state(client) == ""
    with background("run", "--config", config) as daemon:  # over the socket that the killed one has left
        until(lambda: copied(orders) == orders.changes)
        until(lambda: state(client) == "streaming")
        daemon.terminate()
        daemon.communicate(timeout=300)
    assert not config.with_suffix(".sock").exists()


@pytest.mark.long
def test_orders_at_random_while_commits_go_on_and_the_daemon_is_killed(
    orders: Orders, config: Path, client: DaemonClient
) -> None:
    chance = random.Random(7)
    over = threading.Event()

    def commit() -> None:
        number = 100
        while not over.is_set():
            orders.insert(number, number + 1)
            number += 2

    committing = threading.Thread(target=commit)
    committing.start()
    try:
        for _ in range(4):
            with background("run", "--config", config) as daemon:
                until(lambda: state(client) not in ("", "starting"))
                for _ in range(12):
                    client.send("copy", chance.choice(["pause", "resume"]))
                    time.sleep(chance.uniform(0, 0.3))
                daemon.kill()
                daemon.communicate()
    finally:
        over.set()
        committing.join()
    with background("run", "--config", config):
        until(lambda: copied(orders) == orders.changes)


@pytest.fixture
def kept(orders: Orders, config: Path) -> Orders:
    """The table, beside a second pipeline that keeps the daemon running."""
    config.write_text(config.read_text() + '\n[pipelines.other]\ntable = "orders"\nsink = {kind = "files", path = "x"}')
    return orders


def lose(kept: Orders, client: DaemonClient, how: Callable[[], None]) -> None:
    """Stop the pipeline by a version that cannot be read, with the next one delivered after it."""
    until(lambda: copied(kept) == kept.changes)
    for name in ("copy", "other"):
        client.send(name, "pause")
    until(lambda: all(each.state.value == "paused" for each in client.status().pipelines))
    how()
    client.send("copy", "resume")
    until(lambda: state(client) == "stopped")
    assert client.status().pipelines[0].why.startswith("FileVacuumed: ")


def test_skip(kept: Orders, config: Path, client: DaemonClient) -> None:
    def vacuum() -> None:
        kept.insert(20)
        kept.insert(21)
        remove_files(kept.path, 1)

    with background("run", "--config", config):
        until(lambda: state(client) == "streaming")
        with pytest.raises(ConfigError, match="there is nothing to skip"):
            client.send("copy", "skip")
        with pytest.raises(ConfigError, match="Did you mean 'copy'"):
            client.send("cpoy", "skip")
        lose(kept, client, vacuum)
        done = tailer("skip", "copy", "--config", config)
        assert (done.returncode, done.stdout) == (0, "copy reports the gap and continues after it\n")
        wanted = [change if change[0] != 1 else GAP for change in kept.changes]
        until(lambda: copied(kept) == wanted)
        # Once: the next loss stops it again.
        kept.insert(22)
        until(lambda: copied(kept) == [*wanted, kept.changes[-1]])
        client.send("copy", "pause")
        until(lambda: state(client) == "paused")
        kept.insert(23)
        remove_files(kept.path, kept.version)
        client.send("copy", "resume")
        until(lambda: state(client) == "stopped")


def test_the_only_pipeline_waits_for_a_command_when_it_has_stopped(
    orders: Orders, config: Path, client: DaemonClient
) -> None:
    orders.insert(20)
    orders.insert(21)
    remove_files(orders.path, 1)
    with background("run", "--config", config, "--log-format", "text") as daemon:
        until(lambda: state(client) == "stopped")
        assert tailer("skip", "copy", "--config", config).returncode == 0
        until(lambda: copied(orders) == [change if change[0] != 1 else GAP for change in orders.changes])
        orders.insert(22)
        orders.insert(23)
        remove_files(orders.path, 3)
        until(lambda: state(client) == "stopped")
        daemon.terminate()
        _, errors = daemon.communicate(timeout=60)
    assert daemon.returncode == 3
    assert errors.count("; it waits for a command") == 2
    assert "error: copy: " in errors
    config.write_text(f'control = ""\n{config.read_text()}')
    ended = tailer("run", "--config", config, "--log-format", "text")
    assert (ended.returncode, "; no pipeline is left" in ended.stderr) == (3, True)


def test_resnapshot_after_a_loss_and_without_one(kept: Orders, config: Path, client: DaemonClient) -> None:
    def vacuum() -> None:
        kept.insert(20)
        DeltaTable(kept.path).delete("id = 20")
        kept.version += 1
        remove_files(kept.path, 1)

    with background("run", "--config", config):
        lose(kept, client, vacuum)
        assert tailer("resnapshot", "copy", "--config", config).returncode == 0
        first: list[Change] = [(0, "insert", each) for each in range(10)]
        again: list[Change] = [(2, "gap", None), *((2, "insert", each) for each in range(10))]
        until(lambda: copied(kept) == first + again)
        client.send("copy", "resnapshot")  # nothing is due, and it does not wait for a version
        until(lambda: copied(kept) == sorted(first + again + again))
        assert client.status().pipelines[0].command == ""
        note = DeltaTable(kept.path.parent / "copy").history(1)[0]["gap"]
        assert note == "an operator asked for a snapshot; no changes are lost"
        until(lambda: tailer("status", "--config", config).stdout.splitlines()[1].split("\t")[7] == "snapshot: done")
        kept.insert(30)
        until(lambda: copied(kept) == [*sorted(first + again + again), (3, "insert", 30)])


def test_backfill(kept: Orders, config: Path, client: DaemonClient) -> None:
    def phase() -> str:
        found = client.status().pipelines[0].backfill
        return "" if found is None else found.phase.value

    with background("run", "--config", config):
        until(lambda: copied(kept) == kept.changes)
        kept.insert(20, 21)
        kept.delete(3)
        until(lambda: copied(kept) == kept.changes)
        done = tailer("backfill", "copy", "--config", config, "--where", "id > 7")
        said = "copy delivers the rows that fulfil the condition of the version where it is, and then its changes\n"
        assert (done.returncode, done.stdout) == (0, said), done.stderr
        reads: list[Change] = [(2, "insert", each) for each in (8, 9, 20, 21)]
        until(lambda: copied(kept) == sorted([*kept.changes, *reads]))
        until(lambda: phase() == "done")
        assert tailer("status", "--config", config).stdout.splitlines()[1].split("\t")[7] == "done"
        report = json.loads(tailer("status", "--config", config, "--json").stdout)["pipelines"][0]["backfill"]
        assert (report["version"], report["where"], report["rows"]) == (2, "id > 7", 4)
        assert report["files"] == report["files_done"] > 0
        kept.insert(22)
        until(lambda: copied(kept) == sorted([*kept.changes, *reads]))
        for refused, text in (
            (("--where", "colour = 'red'"), "ConfigError: where: at version 3"),
            (("--where", "id >"), "ConfigError: where"),
            (("--version", 9), "version 9 comes after version 3"),
            (("--cancel",), "copy has no backfill to cancel"),
        ):
            done = tailer("backfill", "copy", "--config", config, *refused)
            assert (done.returncode, text in done.stderr) == (2, True), done.stderr
        DeltaTable(kept.path).create_checkpoint()
        (kept.path / "_delta_log" / f"{0:020d}.json").unlink()
        done = tailer("backfill", "copy", "--version", 1, "--config", config)
        assert "VersionGone: " in done.stderr
        assert tailer("backfill", "copy", "--config", config, "--cancel", "--version", 1).returncode == 2
    assert not config.with_suffix(".backfills.json").exists()


def test_backfills_are_kept_until_they_end(kept: Orders, config: Path, client: DaemonClient) -> None:
    backfills_file = config.with_suffix(".backfills.json")
    backfills_file.write_text(
        '{"format": 1, "backfills": {"copy": {"id": "20260301T120005-1f3a5c7e", "where": "id < 2"}}}'
    )
    with background("run", "--config", config):
        reads: list[Change] = [(0, "insert", each) for each in (0, 1)]
        until(lambda: copied(kept) == sorted([*kept.changes, *reads]))
        until(lambda: not backfills_file.exists())
    backfills_file.write_text('{"format": 1, "backfills": {"copy": {"id": "20260301T120005-1f3a5c7f", "version": 9}}}')
    with background("run", "--config", config):
        until(lambda: state(client) != "" and client.status().pipelines[0].backfill is not None)
        until(lambda: not backfills_file.exists())
    backfills_file.write_text("{}")
    done = tailer("run", "--config", config)
    assert done.returncode == 2
    assert "the kept backfills cannot be read" in done.stderr


def test_commands_over_tcp_need_the_token(orders: Orders, config: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("open sesame\n")
    plain = config.read_text()
    config.write_text(f'metrics = "127.0.0.1:0"\ncontrol = ""\ncontrol_token = {{file = "token"}}\n{plain}')
    with background("run", "--config", config, "--log-format", "text") as daemon:
        url = metrics_address(daemon)
        until(lambda: state(DaemonClient(url=url)) == "streaming")
        for token in (None, "open", "open sesame!"):
            with pytest.raises(ConfigError, match="the token is missing or wrong"):
                DaemonClient(url=url, token=token).send("copy", "pause")
        done = tailer("pause", "copy", "--url", url, "--token-file", secret)
        assert (done.returncode, done.stdout) == (0, "copy pauses after its transaction\n")
        until(lambda: state(DaemonClient(url=url)) == "paused")
        assert tailer("status", "--url", url).stdout.splitlines()[1].startswith("copy\tpaused")
    assert not config.with_suffix(".sock").exists()
    config.write_text(f'metrics = "127.0.0.1:0"\n{plain}')
    with background("run", "--config", config, "--log-format", "text") as daemon:
        url = metrics_address(daemon)
        with pytest.raises(ConfigError, match="need control_token in"):
            DaemonClient(url=url, token="open sesame").send("copy", "pause")
        with pytest.raises(ConfigError, match="no pipeline 'cpoy'"):
            DaemonClient(socket=config.with_suffix(".sock")).send("cpoy", "pause")
    assert orders.version == 0


def test_readers_over_tcp_need_a_token(orders: Orders, config: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("open sesame\n")
    config.write_text(f'metrics = "127.0.0.1:0"\nmetrics_token = {{file = "token"}}\n{config.read_text()}')
    with background("run", "--config", config, "--log-format", "text") as daemon:
        url = metrics_address(daemon)
        done = tailer("status", "--url", url, "--token-file", secret)
        assert done.stdout.splitlines()[1].startswith("copy\t"), done.stderr
        refused = tailer("status", "--url", url)
        assert refused.returncode == 2
        assert "the token is missing or wrong" in refused.stderr
        until(lambda: states(config) == {"copy": "streaming"})
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert "sesame" not in errors
    assert orders.version == 0


def test_tokens_from_commands_and_from_the_environment(orders: Orders, config: Path, tmp_path: Path) -> None:
    secret, plain = tmp_path / "token", config.read_text()
    secret.write_text("open sesame\n")
    command = 'metrics_token = {command = ["echo", "open sesame"]}'
    config.write_text(f'metrics = "127.0.0.1:0"\n{command}\n{plain}')
    with background("run", "--config", config, "--log-format", "text", TAILER_CONTROL_TOKEN="close sesame") as daemon:
        url = metrics_address(daemon)
        assert tailer("status", "--url", url, "--token-file", secret).returncode == 0
        assert "the token is missing or wrong" in tailer("status", "--url", url).stderr
        until(lambda: state(DaemonClient(url=url, token="open sesame")) == "streaming")
        with pytest.raises(ConfigError, match="the token is missing or wrong"):
            DaemonClient(url=url, token="open sesame").send("copy", "pause")
        DaemonClient(url=url, token="close sesame").send("copy", "pause")
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert "sesame" not in errors
    config.write_text(f'metrics = "127.0.0.1:0"\nmetrics_token = {{command = ["false", "open sesame"]}}\n{plain}')
    done = tailer("run", "--config", config)
    assert done.returncode == 2
    assert "metrics_token: the command false ended with exit code 1" in done.stderr
    assert "sesame" not in done.stderr
    assert orders.version == 0


def test_a_history_has_the_deliveries_of_the_running_daemon(orders: Orders, config: Path, tmp_path: Path) -> None:
    def deliveries(*where: object) -> list[float | None]:
        done = tailer("history", orders.path, "--pipeline", "copy", "--json", *where)
        assert done.returncode == 0, done.stderr
        return [each["delivery_s"] for each in json.loads(done.stdout)["lines"]]

    with background("run", "--config", config):
        until(lambda: copied(orders) == orders.changes)
    config.write_text(f'metrics = "127.0.0.1:0"\n{config.read_text()}')
    with background("run", "--config", config, "--log-format", "text") as daemon:
        url = metrics_address(daemon)
        for number in (20, 21):
            begun_s = time.time()
            orders.insert(number)
            until(lambda: copied(orders) == orders.changes)
            until(lambda: deliveries("--config", config)[-1] is not None)
            seconds = deliveries("--config", config)[-1]
            assert seconds is not None
            assert 0 < seconds < time.time() - begun_s
        earlier, *known = deliveries("--config", config)
        assert (earlier, len(known), None in known) == (None, 2, False)  # of the daemon that was killed
        assert deliveries("--url", url) == deliveries("--config", config)
        heading, *lines = tailer("history", orders.path, "--config", config, "--pipeline", "copy").stdout.splitlines()
        assert heading.split("\t")[-1] == "delivery"
        assert [line.split("\t")[-1] == "-" for line in lines] == [True, False, False]
        other = Orders(tmp_path / "other")
        other.insert(1)
        for table, name, reason, remedy in (
            (orders.path, "cpoy", "there is no pipeline 'cpoy'", "`tailer status` shows the pipelines"),
            (other.path, "copy", f"copy follows {orders.path}, not {other.path}", "Name a pipeline of this table"),
        ):
            done = tailer("history", table, "--config", config, "--pipeline", name)
            assert (done.returncode, reason in done.stderr, remedy in done.stderr) == (2, True, True), done.stderr


def test_a_daemon_that_does_not_run_is_named(orders: Orders, config: Path) -> None:
    for command in (("status",), ("history", orders.path, "--pipeline", "copy")):
        done = tailer(*command, "--config", config)
        assert done.returncode == 2
        assert "no daemon answers" in done.stderr
