"""Backfills: all rows of one version, or those that fulfil a condition, delivered again between two versions.

The rows are those of a snapshot, so they are reads. They come after the last version that is delivered and before the
next one, which waits. So a reader that takes rows in the order of their arrival has the table at every moment
(invariant 8): rows of version V that came after the changes of V+1 would bring deleted rows back.

A backfill is a stream of its own. Its progress has the app id `<pipeline>/~backfill-<id>/<table id>`, so that of the
pipeline never moves back, and no sink needs to know of backfills. It is delivered in transactions of the usual size,
and goes on after the sink's progress whatever ends a session. Its tasks have task numbers of their own, so event ids
differ from those of any other snapshot of the version.

The sink cannot keep a command's condition, so commands are kept by the daemon (`tailer.daemon.fleet.backfills`) until
they have ended. A lost command loses no change: the rows that are left are not delivered, and it may be given again.

`tailer resnapshot` is a backfill, too, where no version is due: a gap without lost changes, then all rows.
"""

__all__: list[str] = []
