"""The libraries of the extra `import`: what a person reads where one is missing."""

from __future__ import annotations

from model_export.errors import ExportError


def missing_library(library: str, needed_for: str) -> ExportError:
    """Returns the error of a library that is not installed."""
    return ExportError(f"{needed_for} need {library}, which is not installed: pip install 'embedding-server[import]'")
