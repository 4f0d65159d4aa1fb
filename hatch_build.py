"""Make the text of the package's page from README.md, whose links are relative to the repository.

A package has none of the files that they lead to. Where `[project.urls]` of pyproject.toml names the repository, links
lead to the files of this version there; where it names none, the text of each link or picture stays, without it.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)\[([^\[\]]*)\]\((?![a-z+]+:|#)([^()\s]+)\)")


class PackagePage(MetadataHookInterface):
    """Set `readme`; `[project]` must list it as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the text to the fields of `[project]`."""
        repository = metadata.get("urls", {}).get("Repository")
        files = f"{repository.rstrip('/')}/blob/v{metadata['version']}" if repository else None
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        page = RELATIVE.sub(lambda link: f"{link[1]}[{link[2]}]({files}/{link[3]})" if files else link[2], text)
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
