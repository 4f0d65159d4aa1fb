"""The next step where a library is not installed, in one wording for every extra of the package."""

from tailer.errors.general import ConfigError

__all__ = ["how_to_install", "missing_client"]


def how_to_install(*extras: str, package: str = "lake-tailer") -> str:
    """Return the command that installs `package` with its `extras`, as a sentence."""
    wanted = f"'{package}[{','.join(extras)}]'" if extras else package
    return f"Install it: pip install {wanted}."


def missing_client(extra: str, store: str, error: ImportError) -> ConfigError:
    """Return the error where the client of a store at the location `store`, which comes with `extra`, is missing."""
    remedy = f"{how_to_install(extra)} Executors of Spark need it, too."
    return ConfigError(store, f"its client is not installed: {error}", remedy)
