"""Reads the keys of a table's rows from a separate file: text with one key a line, or a .npy of integers or strings."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import numpy as np

from model_export.errors import ExportError
from model_export.importers.table_reader import Keys
from service.artifact.vocabulary_lines import lines_of


def read_keys(path: Path) -> Keys:
    """Reads a file of keys in the order of the imported table's rows; raises ExportError if it can not be read."""
    try:
        if path.suffix == ".npy":
            return _numpy_keys(path)
        # The byte order mark that some editors write is no part of the first key.
        return [line.decode() for line in lines_of(path.read_bytes().removeprefix(BOM_UTF8))]
    except UnicodeDecodeError as error:
        raise ExportError(f"{path}: keys are UTF-8 text, one a line: {error}") from error
    except (OSError, ValueError) as error:
        raise ExportError(f"cannot read keys from {path}: {error}") from error


def _numpy_keys(path: Path) -> Keys:
    keys = np.load(path, allow_pickle=False)
    if keys.ndim != 1 or keys.dtype.kind not in "iuUS":
        raise ExportError(f"{path} holds {keys.dtype} {list(keys.shape)}; keys are one row of whole numbers or strings")
    if keys.dtype.kind == "S":
        return [key.decode() for key in keys.tolist()]
    listed: Keys = keys.tolist()
    return listed
