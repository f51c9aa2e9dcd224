"""Implements the commands `model-export delta` and `model-export compact`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from model_export.compaction.compact import compact
from model_export.compaction.deltas import write_delta
from model_export.compaction.reduction_report import reduction_lines
from model_export.errors import ExportError
from model_export.report.commands import rows_shown
from service.artifact.manifest import Manifest
from service.types import Array


def delta(arguments: argparse.Namespace) -> None:
    ids, rows = _read_rows(arguments.rows)
    file = write_delta(
        arguments.artifact, arguments.table, ids, rows, sequence=arguments.sequence, force=arguments.force
    )
    sys.stdout.write(f"{len(ids)} rows of table {arguments.table!r}: {file}\n")


def fold(arguments: argparse.Namespace) -> None:
    with tqdm(unit="row", unit_scale=True, leave=False, disable=None, file=sys.stderr) as bar:
        artifact = compact(
            arguments.artifact,
            arguments.out,
            version=arguments.version,
            journal=arguments.journal,
            without_journal=arguments.without_journal,
            skip_refused=arguments.skip_refused,
            table_dtype=arguments.table_dtype,
            progress=rows_shown(bar),
        )
    manifest = Manifest.read(artifact)
    if manifest is not None and arguments.table_dtype is not None:
        sys.stdout.write("".join(f"{line}\n" for line in reduction_lines(manifest)))
    sys.stdout.write(f"compacted and verified: {artifact}\n")


def _read_rows(path: Path) -> tuple[Array, Array]:
    try:
        # allow_pickle=False: a pickled object in the .npz file could run code.
        with np.load(path, allow_pickle=False) as arrays:
            ids, rows = arrays["ids"], arrays["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{path}: expected a .npz file with the arrays ids and rows ({error})") from error
    if ids.dtype.kind not in "iu" or rows.dtype.kind != "f":
        raise ExportError(f"{path}: ids are {ids.dtype} and rows {rows.dtype}, expected int64 and float32")
    return ids, rows
