"""Which rows a training looked up most: read from the statistics that model_export leaves in an artifact.

A file per table below assets.extra/statistics, of which the table's name and `counts.ids` are taken: up to some
thousand ids in ascending order. Nothing here is needed for an answer, so what can not be read is logged and left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from service.core.types import Array

STATISTICS_PATH = "assets.extra/statistics"

logger = logging.getLogger(__name__)


def hot_rows(artifact: Path) -> Iterator[tuple[str, Array]]:
    """Yields each table's name with [n] int64 ascending rows, none below 0."""
    for file in sorted((artifact / STATISTICS_PATH).glob("*.json")):
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            name, ids = str(document["table"]["name"]), np.unique(np.array(document["counts"]["ids"], np.int64))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning("statistics can not be read", extra={"path": str(file), "reason": str(error)})
            continue
        yield name, ids[ids >= 0]
