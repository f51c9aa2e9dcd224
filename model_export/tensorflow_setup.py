"""The one import of TensorFlow for this package, with what has to be set before it.

The TFRS embedding layer works with Keras 2 only, which TensorFlow chooses when it is imported. Modules that need
TensorFlow say `from model_export.tensorflow_setup import tf`; commands import those modules late, because this costs
five to ten seconds.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _quiet_start() -> Iterator[None]:
    # Native code writes its start-up notes (no GPU, CPU flags) straight to descriptor 2 whatever the log level, so the
    # descriptor itself is put aside; what was written is given back when the import fails.
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all
        yield
        return
    with tempfile.TemporaryFile() as chatter:
        os.dup2(chatter.fileno(), 2)
        try:
            yield
        except BaseException:
            chatter.seek(0)
            os.write(saved, chatter.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)


os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with _quiet_start(), warnings.catch_warnings():
    # Deprecations inside TensorFlow and its dependencies are not ours to act on.
    warnings.simplefilter("ignore")
    import tensorflow as tf
    import tensorflow_recommenders as tfrs

    tf.config.list_physical_devices()  # else the note about a missing GPU would come later


def _is_news(record: logging.LogRecord) -> bool:
    # The old ways of feature columns and v1 graphs are what this package is for.
    return "is deprecated and will be removed" not in str(record.msg)


logging.getLogger("tensorflow").addFilter(_is_news)

__all__ = ["tf", "tfrs"]
