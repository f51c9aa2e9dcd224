"""Names the datatypes of the Open Inference Protocol, for descriptions of models.

Source: kserve/open-inference-protocol, specification/protocol/inference_grpc.md "Tensor Data Types" (29ca333).
"""

from __future__ import annotations

from collections.abc import Mapping

from service.artifact import tensor_proto

BYTES = "BYTES"

# Dtype name of this server -> datatype of the Open Inference Protocol.
DATATYPES: Mapping[str, str] = {
    "bool": "BOOL",
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "string": BYTES,
}


def datatype_name(dtype: str) -> str:
    """Returns the Open Inference Protocol's datatype for a dtype name, or TensorFlow's name if the protocol has none.

    >>> datatype_name("float32"), datatype_name("string"), datatype_name("complex64")
    ('FP32', 'BYTES', 'DT_COMPLEX64')
    """
    return DATATYPES.get(dtype) or tensor_proto.proto_name(dtype)
