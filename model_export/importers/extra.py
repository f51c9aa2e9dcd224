"""Makes the error for a missing library of the extra `import`."""

from __future__ import annotations

from model_export.errors import ExportError


def missing_library(library: str, needed_for: str) -> ExportError:
    """Returns the error of a library that is not installed."""
    return ExportError(f"{needed_for} need {library}, which is not installed: pip install 'embedding-server[import]'")
