"""The options of the `http` sink: refusals before any I/O, and secrets that are not shown."""

from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import pytest

from tailer.config.options import each_fault
from tailer.errors import ConfigError, SinkRejected
from tailer_sinks.http.options import Options, RequestSecrets, origin, read
from tests.support.cases import cases

URL: Final = "https://api.example.com:8443/changes?token=hush"
KEY: Final = b64encode(b"hush" * 6).decode()


def of(**options: Any) -> Options:
    return read("orders", {"url": URL, **options})


def faults(**options: Any) -> list[ConfigError]:
    """Return every fault of the options."""
    with pytest.raises((ConfigError, ExceptionGroup)) as raised:
        of(**options)
    assert isinstance(raised.value, ConfigError | ExceptionGroup)
    return each_fault(raised.value)


def test_an_address_is_enough() -> None:
    options = of()
    assert (options.format, options.batch_rows, options.batch_bytes, options.timeout_s) == ("json", 1000, 10**6, 30)
    assert "hush" not in repr(options)
    assert origin(options.url) == "https://api.example.com:8443"


@cases(
    ("option", "options"),
    [
        ("url", {"url": "api.example.com/hush"}),
        ("url", {"url": "ftp://api.example.com/hush"}),
        ("url", {"url": "https:///hush"}),
        ("url", {"url": "https://api.example.com:hush/"}),
        ("url", {"url": "https://[hush"}),
        ("url", {"url": "https://api.example.com/hush hush"}),
        ("url", {"url": "https://ada:hush@api.example.com/"}),
        ("url", {"url": "https://api.example.com/#hush"}),
        ("format", {"format": "xml"}),
        ("batch_rows", {"batch_rows": 0}),
        ("batch_bytes", {"batch_bytes": 2**31}),
        ("timeout_s", {"timeout_s": 0}),
        ("headers.X-Team", {"headers": {"X-Team": 7}}),
        ("headers.X Team", {"headers": {"X Team": "hush"}}),
        ("headers.Authorization", {"headers": {"Authorization": "hush\r\nX-Team: hush"}}),
        ("headers.Authorization", {"headers": {"Authorization": "hüsh"}}),
        ("headers.Content-Type", {"headers": {"Content-Type": "hush"}}),
        ("headers.Webhook-Id", {"headers": {"Webhook-Id": "hush"}}),
        ("signature_secret", {"signature_secret": "hush!"}),
        ("signature_secret", {"signature_secret": " "}),
        ("signature_secret", {"signature_secret": b64encode(b"hush").decode()}),
        ("headers.file", {"headers": {"file": "hush"}}),
        ("headers.Authorization", {"headers": {"Authorization": {"file": "hush", "command": ["hush"]}}}),
        ("headers.X Team", {"headers": {"X Team": {"file": "hush"}}}),
        ("signature_secret_file", {"signature_secret": KEY, "signature_secret_file": "/key"}),
        ("dead_letters", {"dead_letters": "folder"}),
    ],
)
def test_what_is_wrong_is_named_without_its_value(option: str, options: dict[str, Any]) -> None:
    (found,) = faults(**options)
    assert found.where == f"orders.{option}"
    assert found.hint
    assert "hush" not in f"{found}{found.hint}"


def test_headers_from_everywhere(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer hush:hush\n")
    # As the environment spells names.
    options = of(
        headers={
            "x_team": {"command": ["echo", " lake"]},
            "X-Kind": "a",
            "authorization": {"file": str(tmp_path / "token")},
        }
    )
    secrets = RequestSecrets("orders", options).read()
    assert secrets.headers == {"authorization": "Bearer hush:hush", "x-team": "lake", "x-kind": "a"}
    assert "hush" not in repr(secrets)


def test_keys_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"whsec_{KEY} {KEY}\n")
    assert (
        RequestSecrets("orders", of(signature_secret={"file": str(tmp_path / "key")})).read().keys == (b"hush" * 6,) * 2
    )


@pytest.mark.parametrize("option", ["headers", "signature_secret"])
@pytest.mark.parametrize("content", [None, b"", b"\xffhush", b"hush\nhush"])
def test_a_file_that_cannot_be_used(tmp_path: Path, option: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    secret = {"file": str(tmp_path / "file")}
    secrets = RequestSecrets("orders", of(**{option: {"Authorization": secret} if option == "headers" else secret}))
    with pytest.raises(SinkRejected, match="file") as raised:
        secrets.read()
    assert raised.value.hint
    assert "hush" not in f"{raised.value}{raised.value.hint}"
