"""The files of `deploy/`, read."""

from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

__all__ = ["DEPLOY", "ROOT", "read_yaml"]

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"


def read_yaml(path: Path) -> Any:
    """Return the document of a file. Raises an error if it is not YAML 1.2, or has a key twice."""
    return YAML(typ="safe").load(path)
