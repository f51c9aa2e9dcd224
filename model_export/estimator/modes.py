"""The modes in which an estimator calls model_fn, and the two API versions of an export to a TPU."""

from __future__ import annotations

import enum


class ModeKeys:
    """The values of model_fn's argument `mode`; the strings are the same as in TensorFlow's Estimator."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class ExportSavedModelApiVersion(enum.Enum):
    """The API version of an export: it decides who places the {serve,tpu} graph on the TPU.

    V1: the estimator wraps the whole model_fn, called with params["use_tpu"] = True.
    V2: model_fn itself places ops on the TPU if params["use_tpu"] is True; its graph is written unchanged.
    """

    V1 = 1
    V2 = 2
