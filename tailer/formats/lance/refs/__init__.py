"""Names in a dataset, as files in its folder `_refs`.

branches   names of histories beside the main one, and tags: names of versions
"""

from tailer.formats.lance.refs.branches import MAIN, Branch, Tag, folder_of, parse_branch, read_branch, read_tag

__all__ = ["MAIN", "Branch", "Tag", "folder_of", "parse_branch", "read_branch", "read_tag"]
