"""The error of every command: what went wrong and what to do, in one message."""

from __future__ import annotations


class ExportError(Exception):
    """A command can not go on; the message is for the person at the terminal."""
