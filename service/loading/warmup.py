"""Runs each graph signature once with made-up inputs before a version is AVAILABLE.

TensorFlow optimises a graph in its first run, which took 0.3 to 0.6 s for a small ranking model; no request should wait
for that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from service.engine.servable import Servable
from service.errors import ServiceError
from service.types import Array, SignatureSpec, TensorSpec

logger = logging.getLogger(__name__)


def warm_up(servable: Servable, names: Iterable[str]) -> None:
    """Runs each named signature once on a row of made-up values: id 0, a key of a vocabulary, zeros, empty strings.

    The core runs it, as it will run requests. A signature that refuses such a row stays cold; the version is served all
    the same.
    """
    for name in names:
        assert servable.native is not None
        row = _one_row(servable.signatures[name])
        try:
            servable.native.run(name, row)
        except ServiceError as error:
            logger.info("signature is not warmed up", extra={"signature": name, "reason": error.message})


def _one_row(spec: SignatureSpec) -> dict[str, Array]:
    row: dict[str, Array] = {}
    for name in sorted(spec.row_inputs & spec.required):
        tensor = spec.inputs[name]
        row[name] = _filled(tensor, tuple(size or 1 for size in tensor.shape or ()))
    for names in spec.ragged_names:
        row[names.values] = _filled(spec.inputs[names.values], (1,))
        row[names.row_splits] = np.array([0, 1], spec.inputs[names.row_splits].numpy_dtype)
        if names.weights in spec.inputs:
            row[names.weights] = _filled(spec.inputs[names.weights], (1,))
    return row


def _filled(tensor: TensorSpec, shape: tuple[int, ...]) -> Array:
    if tensor.vocabulary is not None and tensor.takes_keys:
        value: bytes | int = tensor.vocabulary.example_key
    else:
        value = b"" if tensor.dtype == "string" else 0
    return np.full(shape, value, tensor.numpy_dtype)
