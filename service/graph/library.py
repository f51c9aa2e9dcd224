"""Finds TensorFlow's shared library, which the native core loads, and the definitions of TensorFlow's ops.

Loading the library takes 0.2 s and 34 MB; importing the Python package, which the server never does, 2 s and 190 MB.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from service.artifact.protos import message_class


class CoreLibrary(NamedTuple):
    """The native core, and the path of the shared library by which it runs graphs."""

    core: ModuleType
    library: str


def find_core() -> CoreLibrary | None:
    try:
        core = importlib.import_module("service._native")
    except ImportError:
        return None
    library = _library()
    return None if library is None else CoreLibrary(core, library)


def load_early() -> None:
    """Begins to load TensorFlow's library, in a thread that takes no time from other Python threads.

    Concurrency: any thread. A function that needs the library waits for the same load.
    """
    threading.Thread(target=_load, name="load-tensorflow", daemon=True).start()


def _load() -> None:
    # The first function that needs the library raises the same error again.
    with suppress(RuntimeError):
        if (found := find_core()) is not None:
            found.core.op_definition(found.library, "NoOp")


@cache
def _library() -> str | None:
    # find_spec() of a package that lies in no other package imports nothing.
    spec = importlib.util.find_spec("tensorflow")
    folders = [] if spec is None else spec.submodule_search_locations or []
    libraries = sorted(path for folder in folders for path in Path(folder).glob("libtensorflow_cc.*"))
    return str(libraries[0]) if libraries else None


@cache
def op_definition(name: str) -> Any | None:
    if (found := find_core()) is not None:
        data = found.core.op_definition(found.library, name)
        return None if data is None else message_class("tensorflow.OpDef").FromString(data)
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name)
