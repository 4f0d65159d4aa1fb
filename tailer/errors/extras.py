"""The next step where a library is not installed, in one wording for every extra of the package."""

__all__ = ["how_to_install"]


def how_to_install(*extras: str, package: str = "lake-tailer") -> str:
    """Return the command that installs `package` with its `extras`, as a sentence."""
    wanted = f"'{package}[{','.join(extras)}]'" if extras else package
    return f"Install it: pip install {wanted}."
