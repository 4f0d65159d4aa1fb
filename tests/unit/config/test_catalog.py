"""The options of a catalog: each fault is named as those of sinks are, also where the catalog's client is missing."""

import sys
from functools import partial
from typing import Any, Final

import pytest

from tailer.config.options import faults_by
from tailer.config.pipelines import configure_catalog
from tailer.errors import ConfigError
from tests.support.cases import cases

SOUND: Final = {"uri": "http://127.0.0.1:8080", "table": "main.sales.orders"}


def faults(options: dict[str, Any]) -> list[ConfigError]:
    """Return what is wrong with the options."""
    return faults_by(partial(configure_catalog, options))


@cases(
    ("options", "where"),
    [
        ({"uri": "127.0.0.1:8080"}, "uri"),
        ({"uri": "ftp://host"}, "uri"),
        ({"uri": "http://me:hush@host"}, "uri"),
        ({"uri": "http://host/?token=hush"}, "uri"),
        ({"uri": "http://host:port"}, "uri"),
        ({"uri": "http://[host"}, "uri"),
        ({"table": "orders"}, "table"),
        ({"table": "main..orders"}, "table"),
        ({"table": "a.b.c.d"}, "table"),
        ({"token": ""}, "token"),
        ({"token": "a hush"}, "token"),
        ({"token": "s\u00e9cret"}, "token"),
        ({"token": "hush\n"}, "token"),
        ({"token": 12345}, "token"),
        ({"token": "hush", "token_file": "f"}, "token_file"),
        ({"token_command": ["pass", "hush"]}, "token_command"),
        ({"token": {"file": "f", "command": ["pass", "hush"]}}, "token"),
        ({"token": {"command": [""]}}, "token"),
        ({"token": {"file": ""}}, "token"),
    ],
)
def test_invalid_options_are_named(options: dict[str, Any], where: str) -> None:
    (fault,) = faults(SOUND | options)
    assert fault.where == f"catalog.{where}"
    assert "hush" not in f"{fault} {fault.hint}"
    assert fault.hint


def test_all_faults_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tailer.formats.delta.catalog.unity", None)
    found = faults({"uri": "nowhere", "tabel": "orders", "tokenFile": "f"})
    assert [(fault.where, fault.hint) for fault in found] == [
        ("catalog", "Install it: pip install 'lake-tailer[unity]'."),
        ("catalog.tabel", "Did you mean 'table'?"),
        ("catalog.tokenFile", "Did you mean 'token'?"),
    ]
    assert [fault.where for fault in faults({"uri": "nowhere", "table": "orders"})] == [
        "catalog",
        "catalog.uri",
        "catalog.table",
    ]
