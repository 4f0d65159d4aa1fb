"""The configuration: TOML and the environment become checked settings, without I/O on tables."""

__all__: list[str] = []
