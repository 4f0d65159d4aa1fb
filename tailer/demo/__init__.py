"""The demonstration of `tailer demo`: a live table, the real daemon, a kill -9, a comparison by the table's writer.

::

    stage      the order of events, and their display
    writer     the port of the writers, which create the table, then insert, update, delete and merge rows
    spark      a local Spark with Delta, or an error that says what to install
    shop       the writer of a Delta table
    lance_shop the writer of a Lance dataset, and its comparison
    follower   the daemon as a process of its own: started, killed, started again; its events as they arrive
    proof      the comparison of the delivered events with Spark's change feed

Only the table is made for the demonstration: the daemon is `tailer run` with a configuration.
"""

__all__: list[str] = []
