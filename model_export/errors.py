"""Defines ExportError, whose message says what went wrong and what to do."""

from __future__ import annotations


class ExportError(Exception):
    """Error that ends an export, an import or another command; the command line prints the message."""
