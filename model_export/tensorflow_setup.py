"""Imports TensorFlow for the whole package, after setting the environment variables that TensorFlow reads at import.

The TFRS embedding layer works with Keras 2 only, and TensorFlow chooses Keras when it is imported. Modules that need
TensorFlow use `from model_export.tensorflow_setup import tf`. Commands import such modules late, because the import
takes two to five seconds.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from model_export.environment import set_for_tensorflow

_LONGEST_MESSAGE = 500


@contextmanager
def _quiet_start() -> Iterator[None]:
    # TensorFlow's native code writes start-up messages (no GPU, CPU flags) to file descriptor 2 at any log level. So a
    # file replaces the descriptor; if the import fails, the file's content is written to stderr.
    try:
        saved = os.dup(2)
    # os.dup() fails if this process has no stderr; TensorFlow's messages need not be hidden then.
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as chatter:
        os.dup2(chatter.fileno(), 2)
        try:
            yield
        except Exception:
            chatter.seek(0)
            os.write(saved, chatter.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)


@contextmanager
def _quick_import() -> Iterator[None]:
    # Garbage collection is off: it would take a fifth of the time and find no garbage. JAX is hidden, which TensorFlow
    # imports, where it is installed, for a converter to TensorFlow Lite that this project does not use.
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


set_for_tensorflow()

with _quiet_start(), _quick_import(), warnings.catch_warnings():
    # TensorFlow and its dependencies raise deprecation warnings about themselves, about which users can do nothing.
    warnings.simplefilter("ignore")
    import tensorflow as tf
    import tensorflow_recommenders as tfrs

    # Listing the devices prints TensorFlow's message about a missing GPU now, while stderr is hidden.
    tf.config.list_physical_devices()


def _is_news(record: logging.LogRecord) -> bool:
    # TensorFlow's deprecation warnings are not logged, because this package uses deprecated feature columns and v1
    # graphs on purpose. TensorFlow's writer of checkpoints makes a new function at each save, and warns about this
    # itself.
    message = record.getMessage()
    if len(message) > _LONGEST_MESSAGE:
        # TensorFlow's message about a lost worker repeats a whole batch several times.
        record.msg, record.args = message[:_LONGEST_MESSAGE] + " ...", ()
    return "is deprecated and will be removed" not in message and "tf_function_save" not in message


logging.getLogger("tensorflow").addFilter(_is_news)


__all__ = ["tf", "tfrs"]
