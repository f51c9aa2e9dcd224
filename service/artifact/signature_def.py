"""Reads the signatures and options of a SavedModel, and writes signatures as GetModelMetadata's message and JSON.

Source: tensorflow/core/protobuf/{saved_model,meta_graph}.proto (2.21);
tensorflow_serving/apis/get_model_metadata.proto and model_servers/http_rest_api_util.cc ToJsonString (9d981c5).
tensorflow_serving/servables/tensorflow/saved_model_config_util.cc for saved_model_config.pb.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from service.artifact import tensor_proto
from service.artifact.files import read_plain_file
from service.artifact.protos import TextFormError, check_num_fields, fill_from_text, message_class, text_of
from service.artifact.tensor_proto import decode_tensor, encode_tensor
from service.errors import ArtifactError, InvalidRequest, os_errors_as
from service.types import ROW_SPLITS_SUFFIX, VALUES_SUFFIX, Array, SignatureSpec, TensorSpec, ragged_features

# Largest message that protobuf parses.
_MAX_BYTES = 2**31 - 1
SERVE_TAGS = frozenset({"serve"})


def read_signatures(saved_model_pb: Path, tags: frozenset[str] = SERVE_TAGS) -> dict[str, SignatureSpec]:
    """Reads the signatures of a SavedModel, from its MetaGraph with exactly the given tags.

    All get the kind "predict"; signature_rules.described() finds the lookups by the manifest.

    Raises:
      ArtifactError: the file is missing or corrupt, or has no such meta graph.
    """
    found = read_meta_graph(saved_model_pb, tags).signature_def
    return {name: _read_signature(name, signature) for name, signature in sorted(found.items())}


def read_meta_graph(saved_model_pb: Path, tags: frozenset[str] = SERVE_TAGS) -> Any:
    """Reads the MetaGraphDef with exactly the given tags of a SavedModel; raises ArtifactError as read_signatures()."""
    saved_model = read_saved_model(saved_model_pb)
    if not saved_model.meta_graphs:
        raise ArtifactError(f"{saved_model_pb} holds no meta graph")
    for meta_graph in saved_model.meta_graphs:
        if frozenset(meta_graph.meta_info_def.tags) == tags:
            return meta_graph
    available = "; ".join(_join(meta_graph.meta_info_def.tags) for meta_graph in saved_model.meta_graphs)
    raise ArtifactError(f"{saved_model_pb} has no meta graph tagged {_join(tags)}. Tags it has: {available}.")


def read_saved_model(saved_model_pb: Path) -> Any:
    """Reads a tensorflow.SavedModel; raises ArtifactError if the file can not be read or parsed, or is too large.

    If there is no saved_model.pb, saved_model.pbtxt beside it is read, as TensorFlow does.
    """
    saved_model = message_class("tensorflow.SavedModel")()
    as_text = saved_model_pb.with_suffix(".pbtxt")
    with os_errors_as(ArtifactError, f"cannot read {saved_model_pb}"):
        # A file system that fails may refuse even to say whether a file exists.
        path = as_text if not saved_model_pb.exists() and as_text.exists() else saved_model_pb
        data = read_plain_file(path, _MAX_BYTES)
    try:
        if path == as_text:
            fill_from_text(saved_model, data.decode(errors="replace"))
        else:
            check_num_fields(path, data, "tensorflow.SavedModel")
            saved_model.ParseFromString(data)
    except (TextFormError, DecodeError) as error:
        raise ArtifactError(f"{path} is not a SavedModel: {error}") from error
    return saved_model


def asset_files(meta_graph: Any) -> list[Any]:
    """Returns the AssetFileDefs of a MetaGraph; exports of TensorFlow 1 keep them in a collection.

    Source: tensorflow/python/saved_model/loader_impl.py, get_asset_tensors (2.21).
    """
    collection = "saved_model_assets"
    if meta_graph.asset_file_def or collection not in meta_graph.collection_def:
        return list(meta_graph.asset_file_def)
    make = message_class("tensorflow.AssetFileDef")
    return [make.FromString(one.value) for one in meta_graph.collection_def[collection].any_list.value]


def tensor_names(infos: Iterable[Any]) -> Iterator[str]:
    """Yields the names of the tensors of TensorInfos: three of a sparse tensor, all of a composite one's components."""
    for info in infos:
        match info.WhichOneof("encoding"):
            case "name":
                yield str(info.name)
            case "coo_sparse":
                sparse = info.coo_sparse
                yield from (sparse.values_tensor_name, sparse.indices_tensor_name, sparse.dense_shape_tensor_name)
            case "composite_tensor":
                yield from tensor_names(info.composite_tensor.components)


def encode_metadata(name: str, version: int, signatures: Mapping[str, SignatureSpec]) -> bytes:
    """Encodes a GetModelMetadataResponse; its signature_name stays empty, as in TensorFlow Serving."""
    response = message_class("tensorflow.serving.GetModelMetadataResponse")()
    response.model_spec.name = name
    response.model_spec.version.value = version
    signature_map = message_class("tensorflow.serving.SignatureDefMap")()
    for signature_name, spec in signatures.items():
        _fill_signature(signature_map.signature_def[signature_name], spec)
    packed = response.metadata["signature_def"]
    packed.type_url = f"type.googleapis.com/{signature_map.DESCRIPTOR.full_name}"
    packed.value = signature_map.SerializeToString(deterministic=True)
    return bytes(response.SerializeToString(deterministic=True))


def metadata_json(name: str, version: int, signatures: Mapping[str, SignatureSpec]) -> bytes:
    signature_defs = {}
    for signature_name, spec in signatures.items():
        message = message_class("tensorflow.SignatureDef")()
        _fill_signature(message, spec)
        signature_defs[signature_name] = json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    return orjson.dumps(
        {
            "model_spec": {"name": name, "signature_name": "", "version": str(version)},
            "metadata": {"signature_def": {"signature_def": signature_defs}},
        }
    )


def _read_signature(name: str, signature: Any) -> SignatureSpec:
    inputs: dict[str, TensorSpec] = {}
    for key, info in sorted(signature.inputs.items()):
        if _is_sparse_matrix(info):
            inputs |= _read_sparse_matrix(key, info)
        else:
            inputs[key] = _read_tensor(key, info)
            if key in signature.defaults:
                inputs[key] = replace(inputs[key], is_optional=True, default=_default(key, signature.defaults[key]))
    return SignatureSpec(
        name=name,
        kind="predict",
        method_name=signature.method_name,
        inputs=inputs,
        outputs={key: _read_tensor(key, info) for key, info in sorted(signature.outputs.items())},
        ragged_names=ragged_features(inputs),
        # The signature is kept as bytes: its protobuf message would keep the message of the whole SavedModel in memory.
        definition=partial(text_of, "tensorflow.SignatureDef", signature.SerializeToString()),
    )


def _default(key: str, tensor: Any) -> Array | None:
    try:
        return decode_tensor(key, tensor)
    except InvalidRequest as error:
        raise ArtifactError(f"the default of input {key} can not be read: {error.message}") from error


def _is_sparse_matrix(info: Any) -> bool:
    shape = info.tensor_shape
    return info.WhichOneof("encoding") == "coo_sparse" and (shape.unknown_rank or len(shape.dim) == 2)


def _read_sparse_matrix(name: str, info: Any) -> dict[str, TensorSpec]:
    # A sparse input becomes two inputs, values and row splits: requests can not hold sparse tensors, so clients send
    # ragged ids, which service.graph converts.
    values = TensorSpec(
        name=name + VALUES_SUFFIX,
        dtype=tensor_proto.dtype_name(info.dtype),
        shape=(None,),
        tensor_name=info.coo_sparse.values_tensor_name,
    )
    row_splits = TensorSpec(name=name + ROW_SPLITS_SUFFIX, dtype="int64", shape=(None,))
    return {values.name: values, row_splits.name: row_splits}


def _read_tensor(name: str, info: Any) -> TensorSpec:
    shape = info.tensor_shape
    return TensorSpec(
        name=name,
        dtype=tensor_proto.dtype_name(info.dtype),
        shape=None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim),
        # The name in a TensorInfo is empty for composite tensors, and for sparse tensors that are no COO matrix,
        # because these have several tensors. Such an input can not be fed.
        tensor_name=info.name,
    )


def _fill_signature(signature: Any, spec: SignatureSpec) -> None:
    signature.method_name = spec.method_name
    for tensors, infos in ((spec.inputs, signature.inputs), (spec.outputs, signature.outputs)):
        for key, tensor in tensors.items():
            info = infos[key]
            info.name = tensor.tensor_name
            info.dtype = tensor_proto.dtype_number(tensor.dtype)
            # SetInParent() makes tensor_shape present even for a scalar, whose shape has no dims.
            info.tensor_shape.SetInParent()
            if tensor.shape is None:
                info.tensor_shape.unknown_rank = True
            for size in tensor.shape or ():
                info.tensor_shape.dim.add().size = -1 if size is None else size
    for key, array in spec.defaults.items():
        signature.defaults[key].ParseFromString(b"".join(encode_tensor(key, array)))


def _join(tags: Iterable[str]) -> str:
    return "{" + ", ".join(sorted(tags)) + "}"


SAVED_MODEL_CONFIG = Path("assets.extra/saved_model_config.pb")
# Largest file that is read; it holds a few options.
_MAX_CONFIG_BYTES = 16 << 20

logger = logging.getLogger(__name__)


def check_saved_model_config(artifact: Path) -> None:
    """Raises ArtifactError if a version's saved_model_config.pb is no protobuf message, as TensorFlow Serving does.

    Its fields are options of the graph optimizer, which change no answer: the server does not apply them.
    """
    path = artifact / SAVED_MODEL_CONFIG
    try:
        data = read_plain_file(path, _MAX_CONFIG_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error}") from error
    # empty_pb2 is imported only here: this takes 5 ms of the start, and few versions have a saved_model_config.pb.
    from google.protobuf.empty_pb2 import Empty

    try:
        # Parsing as protobuf's message Empty checks the wire format only: Empty skips all fields, because it knows
        # none.
        Empty.FromString(data)
    except DecodeError as error:
        raise ArtifactError(f"Unable to parse SavedModelConfig: {path}") from error
    if data:
        logger.info("saved_model_config is not applied", extra={"path": str(path)})
