"""Secrets: given as they are, in a file, or by a command."""

from tailer.stores.secrets.command import NoSecret
from tailer.stores.secrets.secret import KEPT_S, KeptSecret, Secret, secret_faults

__all__ = ["KEPT_S", "KeptSecret", "NoSecret", "Secret", "secret_faults"]
