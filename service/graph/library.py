"""Finds TensorFlow: its Python package, its shared library, which the native core loads, and its ops' definitions.

Loading the library takes 0.2 s and 34 MB; importing the package takes 2 s and 190 MB.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Returns the native core with TensorFlow's library; None if one of them is missing."""
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


_importing = threading.Lock()


@contextmanager
def quick_import() -> Iterator[None]:
    """Makes an import of TensorFlow in the `with` block quicker.

    Garbage collection is off: it would take a fifth of the time and find no garbage. JAX is hidden: TensorFlow imports
    it, where it is installed, for a converter to TensorFlow Lite that this project does not use.
    """
    is_collecting, is_hiding_jax = gc.isenabled(), "jax" not in sys.modules
    gc.disable()
    if is_hiding_jax:
        # Python's own mark for a module that can not be imported.
        sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if is_hiding_jax:
            del sys.modules["jax"]
        if is_collecting:
            gc.enable()


def import_tensorflow() -> None:
    """Imports TensorFlow if no import did so before; the module itself is in sys.modules then.

    All objects that the process has then are left out of later garbage collections, so only a server may call this
    function.

    Raises ImportError.

    Concurrency: any thread; all wait for the first.
    """
    with _importing:
        if "tensorflow" in sys.modules:
            return
        errors: list[BaseException] = []
        # TensorFlow's modules keep frames of their import in reference cycles, and each frame keeps the frames of its
        # callers, with their local variables. In the thread of a load, these would be the tables of the version that
        # is loaded, which gc.freeze() would keep for ever. A thread of its own has no other callers.
        thread = threading.Thread(target=_import, args=(errors,), name="import-tensorflow", daemon=True)
        thread.start()
        thread.join()
        if errors:
            raise errors.pop()


def _import(errors: list[BaseException]) -> None:
    try:
        with quick_import():
            import tensorflow  # noqa: F401

            # TensorFlow's 280,000 objects live as long as the process. With them, each full garbage collection would
            # stop all Python threads for 0.25 s, and a process would end 0.7 s later, because Python collects then.
            gc.freeze()
    except BaseException as error:
        errors.append(error)


@cache
def op_definition(name: str) -> Any | None:
    """Returns the OpDef of an op; None if TensorFlow has no op of this name. Concurrency: any thread."""
    if (found := find_core()) is not None:
        data = found.core.op_definition(found.library, name)
        return None if data is None else message_class("tensorflow.OpDef").FromString(data)
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name)
