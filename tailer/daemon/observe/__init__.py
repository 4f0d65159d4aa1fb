"""Reports of the daemon to other systems, beside its own HTTP: OpenTelemetry."""

__all__: list[str] = []
