"""Modes of a model_fn, and the two ways of exporting to a TPU."""

from __future__ import annotations

import enum


class ModeKeys:
    """Values of model_fn's mode: the strings that TensorFlow's Estimator has."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class ExportSavedModelApiVersion(enum.Enum):
    """The API that places a {serve,tpu} graph on the TPU.

    V1: the estimator wraps the whole model_fn, called with params["use_tpu"] = True.
    V2: model_fn does it itself where params["use_tpu"] is True; its graph is written as it is.
    """

    V1 = 1
    V2 = 2
