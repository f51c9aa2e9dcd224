"""Implements the command `model-export diff`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

from model_export.diff.sections import to_html, to_text
from model_export.errors import ExportError
from model_export.folder_checks import check_saved_model
from service.comparison.document import VersionDiff
from service.comparison.tables import Budget
from service.comparison.versions import compare_versions
from service.errors import DataLoss


def diff(arguments: argparse.Namespace) -> None:
    """Compares two version folders and prints what changed.

    Raises:
      ExportError: a folder is no version, its files changed meanwhile, or the drift is beyond --max_drift.
      ArtifactError: the files of a version do not fit its manifest.
    """
    for folder in (arguments.old, arguments.new):
        check_saved_model(folder)
    try:
        found = compare_versions(arguments.old, arguments.new, budget=Budget(rows=arguments.rows))
    except DataLoss as error:
        raise ExportError(error.message) from error
    if not arguments.no_predictions:
        found = _with_predictions(found, arguments.old, arguments.new)
    if arguments.json:
        sys.stdout.write(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
    elif arguments.html is None:
        sys.stdout.write(to_text(found))
    if arguments.html is not None:
        _write(arguments.html, to_html(found))
    if arguments.max_drift is not None and (faults := found.refusals(arguments.max_drift)):
        raise ExportError(f"drifted (--max_drift={arguments.max_drift:g}): {'; '.join(faults)}")


def _with_predictions(found: VersionDiff, old: Path, new: Path) -> VersionDiff:
    if importlib.util.find_spec("tensorflow") is None:
        note = "Recorded requests were not run: TensorFlow is not installed."
        return dataclasses.replace(found, notes=(*found.notes, note))
    from model_export.diff.predictions import compare_predictions, recorded_requests

    requests = recorded_requests(old)
    if not requests:
        note = f"{old} has no recorded predict requests."
        return dataclasses.replace(found, notes=(*found.notes, note))
    predictions, notes = compare_predictions(old, new, requests)
    return dataclasses.replace(found, predictions=predictions, notes=(*found.notes, *notes))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error
    sys.stderr.write(f"comparison written to {path}\n")
