"""Finds TensorFlow's shared library in its Python package, which is not imported, and the native core, which loads it.

Loading the library takes 0.2 s and 34 MB; importing the package takes 2 s and 190 MB.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple


class CoreLibrary(NamedTuple):
    """The native core, and the path of the shared library by which it runs graphs."""

    core: ModuleType
    library: str


def find_core() -> CoreLibrary | None:
    """Returns the native core with TensorFlow's library; None if one of them is missing."""
    try:
        core = importlib.import_module("service._native")
    except ImportError:
        return None
    library = _library()
    return None if library is None else CoreLibrary(core, library)


@cache
def _library() -> str | None:
    # find_spec() of a package that lies in no other package imports nothing.
    spec = importlib.util.find_spec("tensorflow")
    folders = [] if spec is None else spec.submodule_search_locations or []
    libraries = sorted(path for folder in folders for path in Path(folder).glob("libtensorflow_cc.*"))
    return str(libraries[0]) if libraries else None
