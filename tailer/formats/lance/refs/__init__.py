"""Names in a dataset, as files in its folder `_refs`.

branches   names of histories beside the main one
tags       names of versions
ref_files  their files
"""

from tailer.formats.lance.refs.branches import MAIN, Branch, folder_of, parse_branch, read_branch
from tailer.formats.lance.refs.tags import Tag, read_tag

__all__ = ["MAIN", "Branch", "Tag", "folder_of", "parse_branch", "read_branch", "read_tag"]
