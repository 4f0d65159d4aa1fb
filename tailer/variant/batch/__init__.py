"""Texts of many Variants at once, with numpy: the fast path of `json_texts` and `compare_keys`.

The values of a batch are read level by level: first the roots of all rows, then their children, and so on. Each step
handles all values of a level together, whatever their types and names. Texts of leaves are made by Arrow, one type
after another, and a last step copies the pieces of text into their places.

The strict decoder (`tailer.variant.decode`) stays the reference. Rows with anything unusual, and all rows with an
error, are `odd`: they are left to it, which also names the error. Unusual are, for example, fields that are not in the
order of their names, and a nesting that few rows of the batch have.
"""

from tailer.variant.batch.texts import BatchTexts

__all__ = ["BatchTexts"]
