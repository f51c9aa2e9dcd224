"""PredictResponses of one signature: what stands around their arrays is written once for each shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from service.codecs.predict_proto import response_pieces
from service.core.types import Array

# More shapes than this are not remembered, lest a client fills the memory by asking for all of them.
_MOST_SHAPES = 256


class ResponseEncoder:
    """encode_response where outputs always have the same names and dtypes. Concurrency: any thread."""

    def __init__(self, model: str, version: int, signature_name: str) -> None:
        self._model, self._version, self._signature_name = model, version, signature_name
        # What stands before each array, and behind the last.
        self._around: dict[Any, tuple[bytes, ...]] = {}

    def encode(self, outputs: Mapping[str, Array], *, as_content: bool) -> bytes:
        """Returns a PredictResponse; see encode_response."""
        arrays = outputs.values()
        key = (as_content, *[array.shape for array in arrays])
        around = self._around.get(key)
        if around is None:
            return self._learn(key, outputs, as_content=as_content)
        pieces: list[Any] = []
        for before, array in zip(around, arrays, strict=False):
            pieces += (before, np.ascontiguousarray(array))
        pieces.append(around[-1])
        return b"".join(pieces)

    def _learn(self, key: Any, outputs: Mapping[str, Array], *, as_content: bool) -> bytes:
        pieces = response_pieces(
            outputs,
            model=self._model,
            version=self._version,
            signature_name=self._signature_name,
            as_content=as_content,
        )
        # Others have their numbers in varints.
        if all(array.dtype == np.float32 and array.size for array in outputs.values()):
            around = [b""]
            for piece in pieces:
                if isinstance(piece, memoryview):
                    around.append(b"")
                else:
                    around[-1] += piece
            if len(self._around) >= _MOST_SHAPES:
                self._around.clear()
            self._around[key] = tuple(around)
        return b"".join(pieces)
