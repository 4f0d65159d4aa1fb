"""The demonstration behind `tailer demo`: a live Delta table, the real daemon, a kill -9, Spark's verdict.

::

    stage      the order of events, and what is shown of them
    spark      a local Spark with Delta, or an error that says what to install
    shop       what happens to the table: it is created, then rows are inserted, updated, deleted and merged
    follower   the daemon as a process of its own: started, killed, started again; its events as they arrive
    proof      what Spark says of the events that were delivered

Nothing here is special to the demonstration but the table: the daemon is `tailer run` with a configuration.
"""

__all__: list[str] = []
