"""Makes the Open Inference Protocol's metadata documents on the server and its models, for HTTP and gRPC.

A document has the fields of the protobuf message of the same meaning, so that JSON and protobuf can not differ.

Source: kserve/open-inference-protocol, specification/protocol/{inference_rest.md,open_inference_grpc.proto}, and
inference_grpc.md "Tensor Data Types" (29ca333); triton-inference-server/server,
docs/protocol/extension_{model_repository,model_configuration}.md.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from service.artifact import tensor_proto
from service.artifact.protos import message_class
from service.errors import InvalidRequest
from service.types import ModelRef, SignatureSpec, State, TensorSpec, VersionStatus

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


Document = dict[str, Any]

# Name of the signature that a request means if it names none and the model has no serving_default.
FALLBACK_SIGNATURE = "lookup"
SIGNATURE_PARAMETER = "signature_name"
_PACKAGE = "embedding-server"
_PLATFORM = "tensorflow_savedmodel"
_EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters")
_MAX_VERSION = 2**63 - 1
# Error texts for Triton's methods that this server lacks.
NO_SHARED_MEMORY = "Shared memory is not implemented; send tensors in the request."
NO_CONTROL = "Loading and unloading a model is not implemented; change the folder of models or the list of models."
_STATES: Mapping[State, str] = {
    State.UNKNOWN: "UNAVAILABLE",
    State.START: "LOADING",
    State.LOADING: "LOADING",
    State.AVAILABLE: "READY",
    State.UNLOADING: "UNLOADING",
    State.END: "UNAVAILABLE",
}


def model_ref(name: str, version: str) -> ModelRef:
    """Returns the model reference of an Open Inference Protocol request; a version that is no number is a label.

    >>> model_ref("m", ""), model_ref("m", "3"), model_ref("m", "stable").label
    (ModelRef(name='m', version=None, label=None), ModelRef(name='m', version=3, label=None), 'stable')

    Raises:
      InvalidRequest: no name, or a version beyond 64 bits.
    """
    if not name:
        raise InvalidRequest("The request names no model.")
    if not version:
        return ModelRef(name)
    if not (version.isascii() and version.isdigit()):
        return ModelRef(name, label=version)
    if len(version.lstrip("0")) > 19 or int(version) > _MAX_VERSION:
        raise InvalidRequest(f"Version {version[:32]} is not a number of 64 bits.")
    return ModelRef(name, int(version))


@cache
def server_metadata() -> Document:
    """Returns the server's metadata document: name, version and extensions; callers must not change the dict."""
    try:
        version = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return {"name": _PACKAGE, "version": version, "extensions": list(_EXTENSIONS)}


def model_metadata(name: str, statuses: Iterable[VersionStatus], spec: SignatureSpec) -> Document:
    """Returns a model's metadata document: its AVAILABLE versions, newest first, and the tensors of one signature.

    An unknown size is -1; a tensor of unknown rank is shown as a list of unknown length.
    """
    versions = [str(status.version) for status in statuses if status.state is State.AVAILABLE]
    return {
        "name": name,
        "versions": versions,
        "platform": _PLATFORM,
        "inputs": [_tensor(tensor) for tensor in spec.inputs.values()],
        "outputs": [_tensor(tensor) for tensor in spec.outputs.values()],
    }


def model_config(name: str, spec: SignatureSpec) -> Document:
    """Returns a model's configuration document: the tensors of a signature, and which inputs are optional.

    max_batch_size is 0, which means that the shapes include the batch dimension.
    """
    return {
        "name": name,
        "platform": _PLATFORM,
        "backend": "",
        "max_batch_size": 0,
        "input": [
            _configured(tensor) | ({"optional": True} if tensor.is_optional else {}) for tensor in spec.inputs.values()
        ],
        "output": [_configured(tensor) for tensor in spec.outputs.values()],
    }


def repository_index(
    statuses: Mapping[str, Iterable[VersionStatus]], problems: Mapping[str, str], *, only_ready: bool
) -> list[Document]:
    """Returns the repository index: an entry for each version of each model, and one for a model without versions; only
    those in the state READY if only_ready.
    """
    entries: list[Document] = []
    for name, versions in statuses.items():
        found = [
            {
                "name": name,
                "version": str(s.version),
                "state": _STATES[s.state],
                "reason": s.message or ("unloaded" if s.state is State.END else ""),
            }
            for s in versions
        ]
        nothing = {"name": name, "version": "", "state": "UNAVAILABLE", "reason": problems.get(name, "")}
        entries += found or [nothing]
    return [entry for entry in entries if not only_ready or entry["state"] == "READY"]


def encode_document(full_name: str, document: Document) -> bytes:
    return bytes(message_class(full_name)(**document).SerializeToString())


def _tensor(tensor: TensorSpec) -> Document:
    return {"name": tensor.name, "datatype": datatype_name(tensor.dtype), "shape": _sizes(tensor)}


def _configured(tensor: TensorSpec) -> Document:
    datatype = datatype_name(tensor.dtype)
    known = tensor.dtype in DATATYPES
    kind = "TYPE_" + {BYTES: "STRING"}.get(datatype, datatype if known else "INVALID")
    return {"name": tensor.name, "data_type": kind, "dims": _sizes(tensor)}


def _sizes(tensor: TensorSpec) -> list[int]:
    if tensor.shape is None:
        return [-1]
    return [-1 if size is None else size for size in tensor.shape]
