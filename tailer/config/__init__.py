"""The configuration: TOML and the environment in, checked settings out, before the first byte of I/O."""

__all__: list[str] = []
