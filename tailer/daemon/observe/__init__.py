"""Reports of the daemon beside its own HTTP: the log, and OpenTelemetry."""

__all__: list[str] = []
