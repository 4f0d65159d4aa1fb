"""Routing: rows go to topics that are named by the value of a column, all in one transaction.

These are its parts:

    route     the rule: which topic a value names, and which topics may exist
    encoders  rows divided by topic, after the images of updates were paired
    topics    the topics that a stream has sent rows to: created on first use, checked, and recorded
"""

__all__: list[str] = []
