"""The demonstration of `tailer demo`: a live Delta table, the real daemon, a kill -9, a comparison by Spark.

::

    stage      the order of events, and their display
    spark      a local Spark with Delta, or an error that says what to install
    shop       the writer: creates the table, then inserts, updates, deletes and merges rows
    follower   the daemon as a process of its own: started, killed, started again; its events as they arrive
    proof      the comparison of the delivered events with Spark's change feed

Only the table is made for the demonstration: the daemon is `tailer run` with a configuration.
"""

__all__: list[str] = []
