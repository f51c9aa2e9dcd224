"""Reads the curves of a training from a manifest's provenance, or from the run.json in a training run's folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.report.document import Curve

_X_NAMES = ("epoch", "step", "global_step")
_RUN_FILE = "run.json"


def read_run_history(folder: Path) -> Any:
    path = folder / _RUN_FILE
    try:
        return json.loads(path.read_text(encoding="utf-8"))["history"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"cannot read the history of {path}: {error}; is it a folder that `train` wrote?") from error


def curves(history: Any) -> tuple[Curve, ...]:
    """Returns a curve for each metric of a training history; skips entries of unknown form: provenance is free-form.

    Args:
      history: a list of objects, {"epoch": 1, "loss": 0.9}, or an object of lists, {"loss": [0.9, 0.8]}, as Keras
        returns it; the n-th entry is epoch n unless it names an epoch or step.

    >>> curves([{"step": 10, "loss": 1.5}, {"step": 20, "loss": 1.25}])[0].points
    ((10.0, 1.5), (20.0, 1.25))
    """
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    if isinstance(history, list):
        for count, entry in enumerate(history, 1):
            if not isinstance(entry, Mapping):
                continue
            x_name = next((name for name in _X_NAMES if _number(entry.get(name)) is not None), None)
            x = float(count) if x_name is None else float(entry[x_name])
            for name, value in entry.items():
                if name not in _X_NAMES:
                    _add(points, (str(name), x_name or "epoch"), x, value)
    elif isinstance(history, Mapping):
        for name, values in history.items():
            if name not in _X_NAMES and isinstance(values, list):
                for count, value in enumerate(values, 1):
                    _add(points, (str(name), "epoch"), float(count), value)
    return tuple(Curve(name, x_name, tuple(sorted(found))) for (name, x_name), found in points.items())


def _add(points: dict[tuple[str, str], list[tuple[float, float]]], key: tuple[str, str], x: float, value: Any) -> None:
    number = _number(value)
    if number is not None:
        points.setdefault(key, []).append((x, number))


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None
