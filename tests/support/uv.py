"""uv, which builds our packages and installs them as `uv.lock` says."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["build_wheel", "make_environment", "uv"]

ROOT: Final = Path(__file__).resolve().parents[2]
UV: Final = Path(sys.executable).with_name("uv")


def uv(*arguments: object) -> str:
    """Run uv without the network, then with it if necessary; return its output."""
    result = _uv(*arguments, "--offline")
    if result.returncode:
        result = _uv(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def build_wheel(folder: Path, sources: Path = ROOT) -> Path:
    """Build the wheel of `sources` in `folder`."""
    uv("build", "--wheel", "--out-dir", folder, sources)
    (found,) = folder.glob("*.whl")
    return found


def make_environment(environment: Path, package: Path, extra: str = "", *options: str) -> None:
    """Install a built file with an extra into a new environment, every other package as in `uv.lock`.

    `options`: those of `uv venv`.
    """
    locked = environment.with_name("locked.txt")
    uv("export", "--frozen", "--all-extras", "--no-hashes", "--no-emit-project", "--quiet", "--output-file", locked)
    uv("venv", *options, "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    uv("pip", "install", "--python", python, "--constraints", locked, f"lake-tailer{extra} @ {package.as_uri()}")


def _uv(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return subprocess.run(
        [UV, *map(str, arguments)],
        cwd=ROOT,
        env={"UV_SYSTEM_CERTS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
