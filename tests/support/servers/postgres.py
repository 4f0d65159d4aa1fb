"""A PostgreSQL of the tests, from files that Maven fetched: a database for a sink connector to write to.

It refuses to run as root. In a test run by root the user `nobody` runs it, in a folder accessible to that user, unlike
pytest's.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from tests.jars.where import jars
from tests.support.servers.ports import free_ports
from tests.support.servers.server_process import ServerProcess, unprivileged

__all__ = ["USER", "Postgres", "PostgresError"]

USER: Final = "tests"
_PROTOCOL: Final = 3 << 16
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    "timezone": "UTC",
}


class PostgresError(RuntimeError):
    """The database refuses a statement."""


class Postgres:
    """A server, started when made, or entered and left as a context. It trusts all users. Raises `MissingJarsError`."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="lake-tailer-postgres-"))
        self._server: ServerProcess | None = None
        try:
            self._server = self._started()
            self._server.await_(self._answers, "PostgreSQL does not answer")
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The JDBC address of the database."""
        return f"jdbc:postgresql://127.0.0.1:{self._port}/postgres"

    def query(self, statement: str) -> list[tuple[str | None, ...]]:
        """Run a statement; return its rows, each value as text. Raises `PostgresError`, `OSError`."""
        address = ("127.0.0.1", self._port)
        with socket.create_connection(address, timeout=60) as connection, connection.makefile("rb") as replies:
            return _Connection(connection, replies).query(statement)

    def require_password(self, user: str) -> None:
        """Ask this user for a password from now on."""
        file = self._directory / "data" / "pg_hba.conf"
        file.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{file.read_text()}")
        self.query("SELECT pg_reload_conf()")

    def close(self) -> None:
        """Stop it and remove its files."""
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _started(self) -> ServerProcess:
        (jar,) = (path for path in jars("connect") if path.name.startswith("embedded-postgres-binaries"))
        with zipfile.ZipFile(jar) as archive:
            (packed,) = (name for name in archive.namelist() if name.endswith(".txz"))
            with archive.open(packed) as file, tarfile.open(fileobj=file, mode="r|xz") as programs:
                programs.extractall(self._directory, filter="data")
        user = unprivileged()
        if user is not None:
            os.chown(self._directory, user, user)
        data = self._directory / "data"
        options = ["-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "-D", str(data)]
        done = subprocess.run(
            [str(self._directory / "bin" / "initdb"), *options],
            capture_output=True,
            check=False,
            cwd=self._directory,
            text=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        if done.returncode:
            raise PostgresError(done.stderr)
        (self._port,) = free_ports(1)
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._directory / "bin" / "postgres"), "-D", str(data), "-p", str(self._port), *settings]
        # SIGQUIT ends it at once and leaves nothing in shared memory.
        return ServerProcess(command, self._directory, stop=signal.SIGQUIT, user=user)

    def _answers(self) -> bool:
        try:
            return self.query("SELECT 1") == [("1",)]
        except PostgresError:  # still starting
            return False


class _Connection:
    """The part of PostgreSQL's protocol for statements without parameters."""

    def __init__(self, connection: socket.socket, replies: BinaryIO) -> None:
        self._socket = connection
        self._replies = replies
        hello = b"".join(part.encode() + b"\0" for part in ("user", USER, "database", "postgres", ""))
        self._socket.sendall(struct.pack("!ii", len(hello) + 8, _PROTOCOL) + hello)
        self._rows()

    def query(self, statement: str) -> list[tuple[str | None, ...]]:
        """Run a statement; return its rows."""
        text = statement.encode() + b"\0"
        self._socket.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
        return self._rows()

    def _rows(self) -> list[tuple[str | None, ...]]:
        """Read rows until the server waits for the next statement."""
        rows = []
        while True:
            kind, length = struct.unpack("!ci", self._read(5))
            body = self._read(length - 4)
            if kind == b"E":
                raise PostgresError(body.replace(b"\0", b" ").decode(errors="replace"))
            if kind == b"D":
                rows.append(_values(body))
            elif kind == b"Z":
                return rows

    def _read(self, length: int) -> bytes:
        data = self._replies.read(length)
        if len(data) < length:
            raise ConnectionResetError("PostgreSQL closed the connection")
        return data


def _values(body: bytes) -> tuple[str | None, ...]:
    (count,), at = struct.unpack_from("!h", body), 2
    values: list[str | None] = []
    for _ in range(count):
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        values.append(None if length < 0 else body[at : at + length].decode())
        at += max(length, 0)
    return tuple(values)
