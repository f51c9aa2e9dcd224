"""Imports TensorFlow, in two thirds of the time that the plain statement takes."""

from __future__ import annotations

import gc
import sys
import threading

_importing = threading.Lock()


def import_tensorflow() -> None:
    """Imports TensorFlow if no import did so before; the module itself is in sys.modules then.

    Garbage collection is off meanwhile: it would take a fifth of the time and find no garbage. JAX is hidden meanwhile:
    TensorFlow imports it, where it is installed, for a converter to TensorFlow Lite that no server uses. All objects
    that the process has then are left out of later garbage collections, so only a server may call this function.

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
    is_collecting, is_hiding_jax = gc.isenabled(), "jax" not in sys.modules
    gc.disable()
    if is_hiding_jax:
        # Python's own mark for a module that can not be imported.
        sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        import tensorflow  # noqa: F401

        # TensorFlow's 280,000 objects live as long as the process. With them, each full garbage collection would
        # stop all Python threads for 0.25 s, and a process would end 0.7 s later, because Python collects then.
        gc.freeze()
    except BaseException as error:
        errors.append(error)
    finally:
        if is_hiding_jax:
            del sys.modules["jax"]
        if is_collecting:
            gc.enable()
