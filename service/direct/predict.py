"""PredictRequest to PredictResponse for plain lookups; None for everything else."""

from __future__ import annotations

import threading

import numpy as np

from service.codecs.predict_proto import parse_message, read_model_spec
from service.core.errors import ServiceError
from service.core.types import Array, ModelRef
from service.direct.scan import COLUMNS, MAX_INPUTS, scan

_MAX_SPECS = 1024


class _Found(threading.local):
    def __init__(self) -> None:
        self.inputs = np.zeros((1 + MAX_INPUTS, COLUMNS), np.int64)


class Scanner:
    """Reads what plain requests ask for. Concurrency: any thread."""

    def __init__(self) -> None:
        self._found = _Found()
        self._specs: dict[bytes, tuple[ModelRef, str] | None] = {}

    def scan(self, data: bytes) -> tuple[tuple[ModelRef, str], Array, tuple[bytes, ...]] | None:
        """Returns (model and signature, what was found, names of the inputs); None for a request that is not plain.

        What was found is overwritten by the thread's next scan.
        """
        found = self._found.inputs
        count = scan(data, found)
        if count < 0:
            return None
        (at, length, *_), *inputs = found[: count + 1].tolist()
        spec = data[at : at + length]
        try:
            target = self._specs[spec]
        except KeyError:
            target = self._read(spec)
        if target is None:
            return None
        return target, found, tuple([data[i[0] : i[0] + i[1]] for i in inputs])

    def _read(self, spec: bytes) -> tuple[ModelRef, str] | None:
        target = None
        try:
            # A ModelSpec in field 1, as a request has it.
            request = parse_message("tensorflow.serving.PredictRequest", b"\x0a" + _length(len(spec)) + spec)
            target = read_model_spec(request)
        except ServiceError:
            pass
        if len(self._specs) < _MAX_SPECS:
            self._specs[spec] = target
        return target


def _length(value: int) -> bytes:
    from service.codecs.wire import varint

    return varint(value)
