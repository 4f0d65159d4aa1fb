"""The script of the compose file that makes its table, against the S3 server that the compose file runs."""

import json
import subprocess
import sys
from typing import Final

from tests.deploy.files import DEPLOY
from tests.support.daemon.commands import tailer
from tests.support.s3.server import S3Server

SCRIPT: Final = DEPLOY / "compose" / "make_table.py"


def test_the_table_can_be_followed_and_grows_with_each_round(versitygw: S3Server) -> None:
    variables = {**versitygw.environment, "AWS_REGION": "us-east-1"}
    for version in (3, 7):
        made = subprocess.run(
            [sys.executable, SCRIPT],
            env={"PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.stdout == f"s3://lake/shop/orders: version {version}\n", made.stderr
    followed = tailer("tail", "s3://lake/shop/orders", "--from", "earliest", "--to", "latest", cwd=None, **variables)
    assert followed.returncode == 0, followed.stderr
    table: dict[int, float] = {}
    for line in followed.stdout.splitlines():
        row = json.loads(line)
        if row["_change_type"] == "delete":
            assert table.pop(row["id"]) == row["amount"]
        else:
            assert table.setdefault(row["id"], row["amount"]) == row["amount"]
    assert table == {1: 10.0, 2: 21.0, 3: 30.0, 5: 50.0, 6: 60.0, 7: 71.0, 8: 80.0, 10: 100.0}
