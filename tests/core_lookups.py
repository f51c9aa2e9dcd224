"""Asks the native core for lookups of small models, without a network server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.artifact.protos import message_class
from service.artifact.signature_def import read_signatures
from service.core.description import Described, describe
from service.tables.backend import OpenedLookups, open_lookups
from tests.conformance.wires import PREDICT, predict_request
from tests.toy_model import manifest_of

# Number of TensorFlow's DataType -> name of the numpy dtype whose bytes a TensorProto's content has.
_DTYPES = {1: np.float32, 2: np.float64, 14: np.uint16, 19: np.float16}


def opened(folder: Path) -> OpenedLookups:
    """Opens the lookups of a version, as the loader does."""
    return open_lookups(folder, manifest_of(folder), read_signatures(folder / "saved_model.pb"))


class CoreLookups:
    """The lookups of a version folder, served as model "m" by the handlers of the native core.

    lookups, described: the version as the control plane opens and describes it.
    """

    def __init__(self, folder: Path, native: Any = None) -> None:
        self.lookups = opened(folder)
        assert not self.lookups.faults
        found = describe("m", 1, self.lookups)
        assert found is not None
        self.described: Described = found
        if native is None:
            from service import _native as native
        self.servable = native.Servable(*found.arguments)
        self._forms = native.Forms([("m", [(1, self.servable)], {}, 0.0, "")], as_content=True)

    def predict(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of a gRPC Predict; bfloat16 as uint16. Raises ValueError with the core's reason."""
        answer = message_class("tensorflow.serving.PredictResponse").FromString(
            self._forms.grpc(PREDICT, predict_request("m", inputs, signature))
        )
        return {name: _array(tensor) for name, tensor in answer.outputs.items()}

    def post(self, path: str, body: bytes) -> bytes:
        """Returns the body of the answer to an HTTP request. Raises ValueError with the core's reason."""
        found: bytes = self._forms.http(path, body)
        return found


def _array(tensor: Any) -> np.ndarray:
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    return np.frombuffer(tensor.tensor_content, _DTYPES[tensor.dtype]).reshape(shape)
