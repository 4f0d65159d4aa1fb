"""Make a release in `dist/`: `make release` runs this on a clean checkout.

The folder gets the wheel and the sdist, a list of all packages that the release was tested with (CycloneDX), the notes
of the version from CHANGELOG.md, and a checksum of each. Both packages are built twice, and must have the same bytes;
then each is installed into an empty environment and reads the changes of a table that delta-rs writes there.
"""

import filecmp
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
UV: Final = Path(sys.executable).with_name("uv")
JOB: Final = """
import deltalake, pyarrow
import tailer
deltalake.write_deltalake("shop", pyarrow.table({"id": [1, 2, 3]}))
deltalake.DeltaTable("shop").delete("id = 2")
changes = tailer.changes("shop").to_arrow().select(["_change_type", "id"]).to_pylist()
print(tailer.__version__, *(f"{change['_change_type']}:{change['id']}" for change in changes))
"""
CHANGES: Final = "insert:1 insert:2 insert:3 delete:2"


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command that must succeed; return its standard output."""
    done = subprocess.run([*map(str, command)], cwd=cwd, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def notes_of(changelog: str, version: str) -> str:
    """Return what the changelog has of a version. Ends the process if there is nothing, or something unreleased."""
    sections = {
        match[1]: match[2].strip() for match in re.finditer(r"(?ms)^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", changelog)
    }
    if sections.get("Unreleased"):
        sys.exit(f"CHANGELOG.md has unreleased changes: put them below `## {version}`, with the date.")
    if not sections.get(version):
        sys.exit(f"CHANGELOG.md has no section `## {version}`: write what changed.")
    return sections[version]


def build(folder: Path) -> list[Path]:
    """Build the wheel and the sdist in a folder; return their paths."""
    run(UV, "build", "--quiet", "--sdist", "--wheel", "--out-dir", folder)
    return sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])


def prove(package: Path, version: str) -> None:
    """Install a package with an extra into an empty environment, and run a job in it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(UV, "venv", "--quiet", "--python", sys.executable, place / "environment")
        python, locked = place / "environment/bin/python", place / "locked.txt"
        run(UV, "export", "--frozen", "--all-extras", "--no-hashes", "--no-emit-project", "--quiet", "-o", locked)
        named = f"lake-tailer[delta] @ {package.as_uri()}"
        run(UV, "pip", "install", "--quiet", "--python", python, "--constraints", locked, named)
        found = run(python, "-c", JOB, cwd=place).strip()
        said = run(python.with_name("tailer"), "--version", cwd=place).strip()
    if found != f"{version} {CHANGES}" or not said.endswith(version):
        sys.exit(f"{package.name} does not work where it is installed: it printed {found!r} and {said!r}.")
    print(f"{package.name}: installed, read {CHANGES}")


def main() -> None:
    """Make the release."""
    if changed := run("git", "status", "--porcelain"):
        sys.exit(f"These files are not committed, and a release is what is committed:\n{changed}")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(), version)
    shutil.rmtree(DIST, ignore_errors=True)
    packages = build(DIST)
    with tempfile.TemporaryDirectory() as again:
        build(Path(again))
        names = [package.name for package in packages]
        _, different, missing = filecmp.cmpfiles(DIST, again, names, shallow=False)
    if different or missing:
        sys.exit(f"Built twice, these differ: {', '.join(different + missing)}.")
    for package in packages:
        prove(package, version)
    bill = DIST / f"lake-tailer-{version}.cdx.json"
    run(UV, "export", "--frozen", "--all-extras", "--no-dev", "--quiet", "--format", "cyclonedx1.5", "-o", bill)
    (DIST / f"lake-tailer-{version}.md").write_text(f"{notes}\n")
    (DIST / ".gitignore").unlink(missing_ok=True)
    files = sorted(DIST.iterdir())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums, end="")


if __name__ == "__main__":
    main()
