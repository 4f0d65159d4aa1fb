"""The Dockerfile: checked by hadolint, in step with the Makefile and `uv.lock`, and its steps run without Docker."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.files import DEPLOY, ROOT
from tests.support.daemon.commands import Orders
from tests.support.servers.ports import free_ports

DOCKERFILE: Final = DEPLOY / "Dockerfile"
TEXT: Final = DOCKERFILE.read_text()
JOINED: Final = re.sub(r"\\\n\s*", "", TEXT)
BIN: Final = Path(sys.executable).parent
PORT: Final = 9464
PLATFORMS: Final = ("manylinux*_x86_64", "manylinux*_aarch64")


def argument(name: str) -> str:
    """Return the default of a build argument."""
    found = re.search(rf'^ARG {name}="?([^"\n]*)"?$', TEXT, re.MULTILINE)
    assert found is not None, name
    return found[1]


def instructions(word: str) -> list[str]:
    """Return the arguments of each instruction with this word."""
    return re.findall(rf"^{word} (.*)$", JOINED, re.MULTILINE)


def health_check(port: int) -> list[str]:
    """Return the command of HEALTHCHECK, for a daemon at `port`."""
    (text,) = instructions("HEALTHCHECK")
    program, *arguments = json.loads(text.partition(" CMD ")[2])
    return [str(BIN / program), *(each.replace(str(PORT), str(port)) for each in arguments)]


def test_hadolint_has_nothing_to_say() -> None:
    result = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def test_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert argument("VERSION") == project["version"]
    assert f"UV_VERSION := {argument('UV_VERSION')}\n" in (ROOT / "Makefile").read_text()
    assert f"Programming Language :: Python :: {argument('PYTHON_VERSION')}" in project["classifiers"]
    assert set(argument("EXTRAS").split()) <= set(project["optional-dependencies"])


def test_it_runs_as_nobody_in_particular_and_ends_on_sigterm() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert instructions("ENTRYPOINT") == ['["tailer"]']
    assert instructions("VOLUME") == ['["/tmp", "/var/lib/lake-tailer"]']
    assert f"TAILER_METRICS=0.0.0.0:{PORT}" in TEXT
    assert not re.search(r"(?i)secret=|password|token|--platform=", TEXT.partition("FROM")[2])


def test_only_what_is_copied_reaches_the_build() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def locked() -> dict[str, dict[str, Any]]:
    """Return the packages of `uv.lock` by name."""
    return {each["name"]: each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}


def installed(extras: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the packages that the image gets, without those that a marker leaves out on Linux."""
    packages = locked()
    project = packages["lake-tailer"]
    due = [*project["dependencies"], *(each for name in extras for each in project["optional-dependencies"][name])]
    seen = {"lake-tailer"}
    while due:
        each = due.pop()
        for extra in each.get("extra", []):
            due += packages[each["name"]]["optional-dependencies"][extra]
        if each["name"] in seen or "win32" in each.get("marker", ""):
            continue
        seen.add(each["name"])
        yield packages[each["name"]]
        due += packages[each["name"]].get("dependencies", [])


def fits(wheel: str, platform: str) -> bool:
    """Return whether the wheel of this name runs on the image's Python and a platform."""
    python, abi, systems = wheel.removesuffix(".whl").split("-")[-3:]
    minor = int(argument("PYTHON_VERSION").partition(".")[2])
    pure = "py3" in python.split(".")
    exact = f"cp3{minor}" in python.split(".")
    stable = abi == "abi3" and re.fullmatch(r"cp3(\d+)", python) is not None and int(python[3:]) <= minor
    rightly_built = exact and abi == f"cp3{minor}"
    return (pure or stable or rightly_built) and any(
        system == "any" or fnmatchcase(system, platform) for system in systems.split(".")
    )


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_library_has_a_wheel_so_the_image_needs_no_compiler(platform: str) -> None:
    found = list(installed(argument("EXTRAS").split()))
    assert {"aiobotocore", "confluent-kafka", "deltalake", "duckdb", "prometheus-client"} <= {p["name"] for p in found}
    lacking = [
        package["name"]
        for package in found
        if not any(fits(wheel["url"].rpartition("/")[2], platform) for wheel in package.get("wheels", []))
    ]
    assert not lacking


def build_steps() -> list[str]:
    """Return the commands of the stage `build` that run uv, in order."""
    return [each for each in instructions("RUN") if "uv sync" in each]


@pytest.mark.long
def test_the_steps_of_the_build(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    target = tmp_path / "opt"
    environment = {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "EXTRAS": argument("EXTRAS"),
        "UV_COMPILE_BYTECODE": "1",
        "UV_LINK_MODE": "copy",
        "UV_PROJECT_ENVIRONMENT": str(target),
        "UV_PYTHON": str(Path(sys.executable).resolve()),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_SYSTEM_CERTS": "1",
        **{name: value for name, value in os.environ.items() if "PROXY" in name.upper() or "CERT" in name},
    }
    if "UV_CACHE_DIR" not in environment:
        environment["UV_CACHE_DIR"] = subprocess.run(
            [BIN / "uv", "cache", "dir"], check=True, capture_output=True, text=True
        ).stdout.strip()
    copies = [line.split() for line in instructions("COPY") if "--from" not in line]
    first, second = build_steps()
    printed = ""
    for step, lines in ((first, copies[:1]), (second, copies[1:])):
        for line in lines:
            for name in line[:-1]:
                copy(ROOT / name, source / name)
        # The image keeps no cache; here it spares the network.
        command = step.replace(" --no-cache", "").replace("/opt/lake-tailer", shlex.quote(str(target)))
        result = subprocess.run(
            ["/bin/sh", "-c", command], cwd=source, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        printed = result.stdout
    assert printed == f"lake-tailer {argument('VERSION')}\n"
    shutil.rmtree(source)  # nothing may refer to it
    runs_read_only(target, tmp_path)


def copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder without compiled modules."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def runs_read_only(environment: Path, folder: Path) -> None:
    """Run the daemon as the image does, from an environment that it may not write to, and ask for its health."""
    orders = Orders(folder / "orders")
    orders.insert(1, 2, 3)
    config = folder / "tailer.toml"
    state = folder / "state"
    state.mkdir()
    sink = f'{{kind = "files", path = "{state}/out"}}'
    config.write_text(f'[pipelines.orders]\ntable = "{orders.path}"\nsink = {sink}\n')
    before = {path: path.stat().st_mtime_ns for path in environment.rglob("*")}
    (port,) = free_ports(1)
    daemon = subprocess.Popen(
        [environment / "bin" / "tailer", "run", "--config", config],
        cwd=state,
        env={
            "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
            "HOME": str(state),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TAILER_METRICS": f"127.0.0.1:{port}",
            "TMPDIR": str(state),
        },
        stderr=subprocess.PIPE,
    )
    try:
        assert is_healthy(health_check(port))
        end = time.monotonic() + 60
        while not list(state.rglob("*.jsonl")) and time.monotonic() < end:
            time.sleep(0.1)
        daemon.terminate()
        _, said = daemon.communicate(timeout=300)
    finally:
        daemon.kill()
    assert daemon.returncode == 0, said
    assert sum(len(path.read_text().splitlines()) for path in state.rglob("*.jsonl")) == 3
    assert {path: path.stat().st_mtime_ns for path in environment.rglob("*")} == before
    assert subprocess.run(health_check(port), stderr=subprocess.DEVNULL, check=False).returncode != 0


def is_healthy(command: list[str], within_s: float = 60) -> bool:
    """Return whether the health check succeeds before the time is over."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return True
        time.sleep(0.5)
    return False
