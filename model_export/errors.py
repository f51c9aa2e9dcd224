"""Defines ExportError, whose message says what went wrong and what to do."""

from __future__ import annotations


class ExportError(Exception):
    """An export, import or other command can not continue; the command line prints the message."""
