"""Warm standby: several processes run one configuration, and of each pipeline one of them is active.

The active instance of a pipeline leaves heartbeats at its destination (`tailer.sink.heartbeats`), from a task of its
own in the event loop that also delivers. The others read them. When they stay the same for `standby_after_s` seconds, a
standby takes over: it writes a heartbeat with a higher term, and begins a run as after any restart, with the sink's
progress.

Heartbeats decide only who delivers, never what is delivered. That the former active instance can commit nothing more
is up to the sink, as for any two instances (invariant 6). So a wrong decision costs seconds, not rows.

No two clocks are compared. A standby measures silence by its own monotonic clock, from its own looks: a heartbeat
carries a count, and no time. So neither skew nor jumps of clocks matter.

All instances run the same command. One that loses the pipeline becomes a standby again.
"""

from tailer.daemon.standby.run import Standby, standing_by

__all__ = ["Standby", "standing_by"]
