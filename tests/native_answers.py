"""Runs predicts in the native core without HTTP or gRPC, and compares their outputs with the reference's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from service.types import Array
from service.versions.servable import Servable


def native_answer(servable: Servable, signature: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the native core's outputs for a request; raises ValueError if it leaves the request to the reference."""
    import tensorflow as tf

    from service import _native

    def sent(array: Array) -> tuple[int, list[int], object]:
        number = tf.as_dtype(array.dtype).as_datatype_enum
        if array.dtype.kind == "O":
            return number, list(array.shape), array.reshape(-1).tolist()
        return number, list(array.shape), array.tobytes()

    spec = servable.signatures[signature]
    assert servable.native is not None
    fed = [(name, *sent(np.asarray(array))) for name, array in inputs.items()]
    found = _native.predict(servable.native.compiled, signature, fed, list(spec.outputs))
    answer = {}
    for name, (number, shape, data) in zip(spec.outputs, found, strict=True):
        dtype = np.dtype(tf.as_dtype(number).as_numpy_dtype)
        array = np.array([*data, None], object)[:-1] if dtype.kind == "O" else np.frombuffer(data, dtype)
        answer[name] = array.reshape(shape)
    return answer


def assert_same(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    """Compares the dtypes, shapes and bytes of all outputs."""
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        if array.dtype.kind == "O":
            assert got[name].tolist() == array.tolist()
        else:
            assert got[name].tobytes() == np.ascontiguousarray(array).tobytes()
