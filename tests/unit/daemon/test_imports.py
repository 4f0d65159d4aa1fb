"""The daemon's event loop imports no client of a store: that takes a second, and every pipeline would wait."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]

# Runs the daemon in a new interpreter until the client is there, and prints which threads imported parts of it.
PROGRAM: Final = """
import json, sys, threading
from contextlib import suppress
from pathlib import Path
import anyio
from tailer.config.settings import load
from tailer.daemon.serve import serve

CLIENT = ("aiobotocore", "botocore", "aiohttp")
threads = set()

def note(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] in CLIENT:
        threads.add(threading.current_thread() is threading.main_thread())

async def main():
    async with anyio.create_task_group() as group:
        group.start_soon(serve, settings)
        while "tailer.stores.s3.bucket" not in sys.modules:
            await anyio.sleep(0.01)
        await anyio.sleep(1)
        group.cancel_scope.cancel()

settings = load(Path(sys.argv[1]))
sys.addaudithook(note)
with suppress(ExceptionGroup):  # without a table the pipeline may stop before the second is over
    anyio.run(main)
print(json.dumps(sorted(threads)))
"""


@pytest.mark.parametrize("place", ["table", "state_table"])
def test_the_client_of_s3_is_imported_by_a_worker_thread(tmp_path: Path, place: str) -> None:
    tables = {"table": str(tmp_path / "orders"), "state_table": str(tmp_path / "state")} | {place: "s3://lake/orders"}
    config = tmp_path / "tailer.toml"
    config.write_text(
        f'state_table = "{tables["state_table"]}"\n'
        '[stores.lake]\nprefix = "s3://lake"\nendpoint = "http://127.0.0.1:1"\nanonymous = true\n'
        f'[pipelines.orders]\ntable = "{tables["table"]}"\nsink = {{kind = "stdout"}}\n'
    )
    command = [sys.executable, "-c", PROGRAM, str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [False], "the event loop's thread imported a part"
