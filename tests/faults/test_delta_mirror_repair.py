"""`tailer verify --repair` of a mirror in Delta, beside a daemon that delivers: no row is lost or doubled."""

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from tests.support.daemon.commands import tailer
from tests.support.daemon.process import Daemon
from tests.support.histories.long_history import LongHistory
from tests.support.waiting import until

SEED: Final = 11
COMMITS: Final = 45
BURST: Final = 10
EVERY_S: Final = 0.2
SUPERFLUOUS: Final = 10**9  # ids from here on are not in the source


def version_of(path: Path, history: LongHistory) -> int:
    try:
        found = DeltaTable(path).transaction_version(f"orders/{history.table_id}")
    except TableNotFoundError:
        return -1
    return -1 if found is None else found


def rows_in(path: Path) -> list[tuple[int, int]]:
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["twice"]) for row in rows)


def damage(path: Path, number: int, chance: random.Random, lost: list[int]) -> None:
    """Lose some rows, change one and add one, unless the daemon commits at the same time."""
    try:
        if lost:
            DeltaTable(path).delete(f"id IN ({', '.join(map(str, lost))})")
        changed, _ = chance.choice(rows_in(path) or [(0, 0)])
        DeltaTable(path).update(updates={"twice": "-1"}, predicate=f"id = {changed}")
        write_deltalake(path, pa.table({"id": [SUPERFLUOUS + number], "twice": [0]}), mode="append")
    except CommitFailedError as error:
        print(f"not all damage: {error}")


def test_a_mirror_is_repaired_while_the_daemon_delivers(tmp_path: Path, started: list[Daemon]) -> None:
    history = LongHistory(tmp_path / "source", seed=SEED, length=COMMITS)
    events = Counter(one for _, _, one in history.changes.elements())
    # Rows that are inserted and never touched again: the pipeline would stop at a change of one that is lost.
    stays = {one: version for version, kind, one in history.changes if events[one] == 1 and kind == "insert"}
    mirror, config = tmp_path / "mirror", tmp_path / "tailer.toml"
    config.write_text(
        f'[pipelines.orders]\ntable = "{history.path}"\npoll_interval_s = 0.05\nselect = "id, id * 2 AS twice"\n'
        f'[pipelines.orders.sink]\nkind = "delta"\npath = "{mirror}"\nmode = "mirror"\nkey = ["id"]\n'
    )
    chance = random.Random(SEED)
    started.append(Daemon(config))
    history.publish(5)
    until(lambda: version_of(mirror, history) >= 1, said=lambda: started[-1].said)
    outcomes: Counter[str] = Counter()

    def await_repair() -> None:
        """Return after a repair that succeeds, while the daemon has nothing to do."""
        wanted = outcomes["exit 0"] + 1
        until(lambda: outcomes["exit 0"] >= wanted)

    def publish() -> None:
        while history.published < history.length:
            for _ in range(BURST):
                history.publish()
                time.sleep(EVERY_S)
            await_repair()

    publishing = threading.Thread(target=publish, daemon=True)
    publishing.start()
    number = 0
    while publishing.is_alive():
        number += 1
        version = version_of(mirror, history)
        some = [one for one, inserted in stays.items() if inserted <= version]
        damage(mirror, number, chance, chance.sample(some, min(len(some), 3)))
        done = tailer("verify", "orders", "--config", config, "--repair")
        outcomes[f"exit {done.returncode}"] += 1
        assert done.returncode == 0 or "nothing was rewritten" in done.stdout, (done.stdout, done.stderr)
        outcomes["went on"] += done.stderr.count("was changed meanwhile")
    publishing.join()
    until(lambda: version_of(mirror, history) == history.last, said=lambda: started[-1].said)
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert (done.returncode, done.stderr) == (0, "")
    assert started[-1].terminate() == 0, started[-1].said
    ids: Counter[int] = Counter()
    for (_, change, one), times in history.changes.items():
        ids[one] += times if change in ("insert", "update_postimage") else -times
    assert rows_in(mirror) == [(one, 2 * one) for one in sorted(+ids)]
    print(dict(outcomes))
