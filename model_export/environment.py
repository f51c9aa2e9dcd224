"""Reads and sets environment variables for the whole package, without TensorFlow."""

from __future__ import annotations

import os


def tf_config() -> str | None:
    return os.environ.get("TF_CONFIG")


def package_index() -> str:
    """Returns the address of the package index that pip's environment variable names; "" if it is not set."""
    return os.environ.get("PIP_INDEX_URL", "")


def set_for_tensorflow() -> None:
    # TFRS's TPUEmbedding layer works with Keras 2 only.
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    # Level 3 hides also what TensorFlow calls errors and reports again as exceptions: model_export runs requests that
    # must fail, to find out what a graph refuses.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
