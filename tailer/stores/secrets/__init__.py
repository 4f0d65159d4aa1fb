"""Secrets: given as they are, in a file, by a command, or in a variable of the environment."""

from tailer.stores.secrets.command import NoSecret
from tailer.stores.secrets.secret import KEPT_S, WAYS, KeptSecret, Secret

__all__ = ["KEPT_S", "WAYS", "KeptSecret", "NoSecret", "Secret"]
