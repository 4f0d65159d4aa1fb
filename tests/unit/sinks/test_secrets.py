"""Secrets that commands print: read for each login, within bounds, and in no text."""

import logging
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tailer.config.options import faults_by
from tailer.errors import ConfigError, SinkError, SinkRejected, SinkUnavailable
from tailer.stores import secrets as running
from tailer.stores.secrets import KEPT_S, KeptSecret, Secret
from tailer_sinks.access import read_secret
from tailer_sinks.http.options import RequestSecrets
from tailer_sinks.http.options import read as read_http
from tailer_sinks.kafka.options import connection_of, registry_secrets
from tailer_sinks.kafka.options import read as read_kafka
from tailer_sinks.sql.options import read as read_sql
from tests.support.cases import cases

SECRET: Final = "hunter2-in-the-vault"


def python(code: str) -> list[str]:
    """Return a command that runs `code`, with the secret among its arguments."""
    return [sys.executable, "-c", code, SECRET]


def printed(*command: str) -> Secret:
    return Secret(command=command)


PRINTS: Final = python("import sys; print(sys.argv[1])")
FAILURES: Final[dict[str, tuple[list[str], type[SinkError], str]]] = {
    "exit code": (python("import sys; print(sys.argv[1]); sys.exit(3)"), SinkUnavailable, "ended with exit code 3"),
    "signal": (python("import os; print(os.sys.argv[1], flush=True); os.abort()"), SinkUnavailable, "exit code -6"),
    "nothing": (python("print()"), SinkRejected, "printed nothing"),
    "no text": (python("import os; os.write(1, b'\\xff\\xfe')"), SinkRejected, "what is not UTF-8"),
    "endless": (python("import sys\nwhile True: print(sys.argv[1])"), SinkRejected, "more than 65536 bytes"),
    "missing": (["/nowhere/pass", SECRET], SinkRejected, "the command /nowhere/pass cannot be run: No such file"),
    "null byte": ([sys.executable, "a\0" + SECRET], SinkRejected, "an argument has a null byte"),
}


def test_a_command_is_run_without_a_shell_for_each_login(tmp_path: Path) -> None:
    held = tmp_path / "a $HOME; name"
    for secret in ("first", "second"):
        held.write_text(f"{secret}\n")
        assert read_secret("s", printed("cat", str(held))) == secret


def test_what_it_is_given_is_not_the_terminal() -> None:
    assert read_secret("s", printed(*python("import sys; print(len(sys.stdin.read()))"))) == "0"


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_names_the_command_and_shows_no_secret(
    failure: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    command, kind, reason = FAILURES[failure]
    caplog.set_level(logging.DEBUG)
    with pytest.raises(kind) as caught:
        read_secret("orders", printed(*command))
    error = caught.value
    assert reason in str(error)
    assert command[0] in str(error)
    assert error.__context__ is None or error.__suppress_context__
    out, err = capfd.readouterr()
    assert SECRET not in "".join((str(error), repr(error), error.hint, out, err, caplog.text))


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "import os, time; os.close(1); time.sleep(60)"])
def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(running, "_LIMIT_S", 0.5)
    began_s = time.monotonic()
    with pytest.raises(SinkUnavailable, match=r"did not end within 0\.5 s"):
        read_secret("orders", printed(*python(code)))
    assert time.monotonic() - began_s < 20


def test_what_it_has_started_is_ended_with_it(tmp_path: Path) -> None:
    """As an agent that it starts, which would keep its output open."""
    lives = tmp_path / "lives"
    started = f"import time, pathlib; time.sleep(2); pathlib.Path({str(lives)!r}).touch()"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {started!r}], stdout=-3); print('x')"
    assert read_secret("s", printed(*python(code))) == "x"
    time.sleep(3)
    assert not lives.exists()


@pytest.mark.parametrize("code", ["print('x')", "print('x', flush=True); import os; os.close(1)"])
def test_one_whose_child_keeps_its_output_open_has_ended(tmp_path: Path, code: str) -> None:
    """As an agent that it starts in a session of its own, with the output that it has. It is not ended."""
    end, ended = tmp_path / "end", tmp_path / "ended"
    until = f"while not pathlib.Path({str(end)!r}).exists(): time.sleep(0.01)"
    started = f"import pathlib, time\n{until}\npathlib.Path({str(ended)!r}).touch()"
    agent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {started!r}], start_new_session=True)"
    assert read_secret("s", printed(*python(f"{agent}; {code}"))) == "x"
    assert not ended.exists()
    end.touch()
    deadline_s = time.monotonic() + 20
    while not ended.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_kept_secret_runs_its_command_once_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = tmp_path / "held"
    held.write_text("first")
    kept, file = KeptSecret(printed("cat", str(held))), KeptSecret(Secret(file=str(held)))
    assert read_secret("s", kept) == read_secret("s", file) == "first"
    held.write_text("second")
    assert [read_secret("s", kept), read_secret("s", file)] == ["first", "second"]
    kept.forget()
    assert read_secret("s", kept) == "second"
    held.write_text("third")
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + KEPT_S - 5)
    assert read_secret("s", kept) == "second"
    monkeypatch.setattr(time, "monotonic", lambda: now_s + KEPT_S + 5)
    assert read_secret("s", kept) == "third"


def test_every_secret_of_the_sinks_may_come_from_a_command() -> None:
    by_command = {"command": PRINTS}
    sql = read_sql("s", {"url": "postgresql://db/shop", "password": by_command})
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    given = {"bootstrap_servers": "b:9092", "topic": "t", "client": login}
    kafka = read_kafka("s", {**given, "client": {**login, "sasl.password": by_command, "ssl_key_password": by_command}})
    oauth = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.id": "u",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
        "sasl": {"oauthbearer": {"client": {"secret": by_command}}},
    }
    by_token = read_kafka("s", {**given, "client": oauth})
    connection, with_token = connection_of("s", kafka), connection_of("s", by_token)
    assert connection.sasl is not None
    assert connection.tls is not None
    assert with_token.sasl is not None
    assert with_token.sasl.oauth is not None
    assert sql.password.read() == connection.sasl.password == connection.tls.key_password == SECRET
    assert with_token.sasl.oauth.client_secret == SECRET
    avro = {**given, "client": {}, "encoding": "avro", "envelope": "flat", "registry_url": "http://r:8081"}
    by_user = read_kafka("s", {**avro, "registry_username": "u", "registry_password": by_command})
    assert registry_secrets("s", by_user) == (SECRET, None)
    assert registry_secrets("s", read_kafka("s", {**avro, "registry_token": by_command})) == (None, SECRET)
    header = python("import sys; print('Bearer ' + sys.argv[1])")
    key = python("print('whsec_' + 'A' * 40)")
    web = read_http(
        "s",
        {"url": "https://x", "headers": {"authorization": {"command": header}}, "signature_secret": {"command": key}},
    )
    of_requests = RequestSecrets("s", web).read()
    assert of_requests.headers == {"authorization": f"Bearer {SECRET}"}
    assert of_requests.keys == (bytes(30),)
    for each in (sql, kafka, by_token, by_user, web):
        assert SECRET not in repr(each)


@cases(
    ("more", "where"),
    [
        ({"password": {"command": PRINTS, "file": "/x"}}, "s.password"),
        ({"password": {"command": PRINTS, "value": "x"}}, "s.password"),
        ({"password": {SECRET: SECRET}}, "s.password"),
        ({"password": {}}, "s.password"),
        ({"password": [SECRET]}, "s.password"),
        ({"password": {"command": [""]}}, "s.password"),
        ({"password": {"command": []}}, "s.password"),
        ({"password": {"command": f"pass {SECRET}"}}, "s.password"),
        ({"password": {"command": ["pass", 7]}}, "s.password"),
        ({"password": {"file": 7}}, "s.password"),
        ({"password": {"env": ""}}, "s.password"),
        ({"password": {"command": PRINTS}, "url": "sqlite:///x.db"}, "s.password"),
    ],
)
def test_faults_of_the_configuration(more: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_sql("s", {"url": "postgresql://db/shop", **more})
    assert caught.value.where == where
    assert SECRET not in str(caught.value)


@cases(
    ("read", "option", "said"),
    [
        (read_sql, "password_file", 'is now password = {file = "..."}'),
        (read_sql, "password_command", 'is now password = {command = ["..."]}'),
        (read_http, "signature_secret_file", 'is now signature_secret = {file = "..."}'),
        (read_http, "headers_command", 'is now headers = {NAME = {command = ["..."]}}'),
        (read_kafka, "registry_token_file", 'is now registry_token = {file = "..."}'),
        (read_kafka, "ssl_key_password_file", 'is now "ssl.key.password" = {file = "..."}, in the table client'),
    ],
)
def test_a_former_option_is_refused_with_what_it_is_now(read: Any, option: str, said: str) -> None:
    """One rule for every secret: an option for each place became a table with it."""
    faults = faults_by(partial(read, "s", {"url": "https://db", "bootstrap_servers": "b:9092", option: SECRET}))
    (fault,) = [fault for fault in faults if fault.where == f"s.{option}"]
    assert fault.reason == said
    assert fault.remedy
    assert SECRET not in f"{fault}{fault.hint}"


def test_a_secret_in_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = read_sql("s", {"url": "postgresql://db/shop", "password": {"env": "SHOP_PASSWORD"}}).password
    with pytest.raises(SinkRejected, match="the variable SHOP_PASSWORD is not set"):
        read_secret("s", secret)
    monkeypatch.setenv("SHOP_PASSWORD", f"{SECRET}\n")
    assert read_secret("s", secret) == SECRET
    assert SECRET not in repr(secret)
    monkeypatch.setenv("SHOP_PASSWORD", f"{SECRET}\udcff")
    with pytest.raises(SinkRejected, match="SHOP_PASSWORD cannot be read: it is not UTF-8"):
        read_secret("s", secret)
    assert secret.remedy("password") == "Correct the variable of password (SHOP_PASSWORD), and restart the daemon."


def test_a_secret_is_where_it_is_and_shows_nothing_else() -> None:
    places = [Secret(), Secret("x"), Secret(file="x"), Secret(command=["x"]), Secret(env="x")]
    assert [places.index(place) for place in places] == [0, 1, 2, 3, 4]
    assert places == [Secret(), Secret("x"), Secret(file="x"), Secret(command=["x"]), Secret(env="x")]
    assert repr([Secret(SECRET), Secret(file="f"), Secret(command=["pass", SECRET])]) == (
        "[Secret(...), Secret(f), Secret(the command pass)]"
    )
