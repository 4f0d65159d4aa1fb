"""A password from a file, a command and the environment, as users give it: `tailer check` and `tailer run`."""

from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon.commands import Orders, background, tailer
from tests.support.mirrors.databases import PostgresDatabase
from tests.support.servers.postgres import USER, Postgres
from tests.support.waiting import until

SECRET: Final = "open-sesame"
WAYS: Final = {
    "by_file": 'password = {file = "secrets/shop"}',
    "by_command": 'password = {command = ["sh", "-c", "cat secret*/sho?"]}',
    "by_variable": 'password = {env = "SHOP_PASSWORD"}',
    "by_environment": "",
    "by_text": f'password = "{SECRET}"',
}


def test_a_password_from_everywhere(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong one is named by `check --connect`, and a replaced one delivers."""
    database = PostgresDatabase(postgres)
    user = f"secret_{database.schema}"
    grants = f"GRANT USAGE, CREATE ON SCHEMA {database.schema} TO {user}"
    database.query(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'; {grants}")
    postgres.require_password(user)
    Orders(tmp_path / "orders").insert(1, 2)
    url = database.options["url"].replace(f"{USER}@", f"{user}@")
    config, secret = tmp_path / "tailer.toml", tmp_path / "secrets" / "shop"
    secret.parent.mkdir()
    secret.write_text("wrong-sesame")
    sink = f'kind = "sql"\nurl = "{url}"\nschema = "{database.schema}"\nkey = ["id"]\n'
    tables = [
        f'[pipelines.{name}]\ntable = "orders"\n[pipelines.{name}.sink]\n{sink}{way}' for name, way in WAYS.items()
    ]
    config.write_text("\n".join(tables))
    monkeypatch.chdir(tmp_path)
    given = {"SHOP_PASSWORD": SECRET, "TAILER_PIPELINES__BY_ENVIRONMENT__SINK__PASSWORD__FILE": str(secret)}

    checked = tailer("check", "--connect", cwd=tmp_path, **given)
    assert checked.returncode == 4
    assert f"hint: Correct the file of password ({secret}); it is read again for each attempt." in checked.stdout
    assert "hint: Correct what the command of password prints (sh); it runs again" in checked.stdout
    assert [line.split()[2] for line in checked.stdout.splitlines() if line.startswith("ok")] == [
        "by_variable:",
        "by_text:",
    ]
    assert "sesame" not in checked.stdout + checked.stderr
    assert "the variable SHOP_PASSWORD is not set" in tailer("check", "--connect", cwd=tmp_path).stdout

    secret.write_text(f"{SECRET}\n")
    with background("run", "--config", config, **given) as daemon:
        until(lambda: set(WAYS) <= set(database.tables()))
        until(lambda: all(database.query(f"SELECT count(*) FROM {name}") == [(2,)] for name in WAYS))
        daemon.terminate()
        printed = "".join(daemon.communicate(timeout=300))
    assert "sesame" not in printed


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ('password_file = "f"', 'password_file: is now password = {file = "..."}', "Write it so, or with __FILE"),
        ('password_comand = ["f"]', "password_comand: no such option", "Did you mean"),
        ('password = {file = "f", env = "F"}', "password: must be text, or a table with one of file", "Give a text"),
        ('password = {fil = "f"}', "password: must be text, or a table with one of file", "Give a text"),
        ('password = "a"\npassword.file = "f"', "password", "Remove one"),
    ],
)
def test_a_wrong_spelling_is_named(tmp_path: Path, given: str, said: str, hint: str) -> None:
    sink = f'kind = "sql"\nurl = "postgresql://me@db/shop"\n{given}\n'
    (tmp_path / "tailer.toml").write_text(f'[pipelines.orders]\ntable = "orders"\n[pipelines.orders.sink]\n{sink}')
    checked = tailer("check", cwd=tmp_path)
    assert checked.returncode == 2
    assert said in checked.stdout
    assert f"hint: {hint}" in checked.stdout
