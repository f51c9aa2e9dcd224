"""Reads MetaGraphs and their signatures from saved_model.pb, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from model_export.folder_checks import SAVED_MODEL, check_saved_model
from model_export.report.document import MetaGraphReport, SignatureReport, TensorReport
from service.artifact.manifest import Manifest
from service.artifact.protos import message_class
from service.artifact.signature_def import read_signatures
from service.errors import ArtifactError
from service.types import SignatureSpec, TensorSpec, runnable

_SERVE = ("serve",)


def read_meta_graphs(artifact: Path, manifest: Manifest | None) -> tuple[MetaGraphReport, ...]:
    """Returns every MetaGraph in saved_model.pb; {serve} is the first.

    Args:
      manifest: gives the kind and features of the signatures in {serve}, the only MetaGraph that a server loads.

    Raises:
      ExportError: the folder is no SavedModel.
      ArtifactError: saved_model.pb is corrupt.
    """
    path = artifact / SAVED_MODEL
    check_saved_model(artifact)
    message = message_class("tensorflow.SavedModel")()
    try:
        message.ParseFromString(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror or error}") from error
    except DecodeError as error:
        raise ArtifactError(f"{path} is not a SavedModel: {error}") from error
    versions = {
        tuple(sorted(graph.meta_info_def.tags)): str(graph.meta_info_def.tensorflow_version)
        for graph in message.meta_graphs
    }
    # Free the parsed message, which may be large, because the file is parsed again below.
    del message
    return tuple(
        MetaGraphReport(tags, versions[tags], _signatures(path, tags, manifest if tags == _SERVE else None))
        for tags in sorted(versions, key=lambda tags: (tags != _SERVE, tags))
    )


def _signatures(path: Path, tags: tuple[str, ...], manifest: Manifest | None) -> tuple[SignatureReport, ...]:
    return tuple(_signature(spec, manifest) for spec in runnable(read_signatures(path, frozenset(tags))).values())


def _signature(spec: SignatureSpec, manifest: Manifest | None) -> SignatureReport:
    entry = None if manifest is None else manifest.signatures.get(spec.name)
    inputs, outputs = _tensors(spec.inputs), _tensors(spec.outputs)
    if entry is None:
        return SignatureReport(spec.name, "graph", spec.method_name, inputs, outputs)
    return SignatureReport(
        name=spec.name,
        kind=entry.kind,
        method=spec.method_name,
        inputs=inputs,
        outputs=outputs,
        device=entry.device,
        batch_sizes=entry.batch_sizes,
        features=entry.features,
    )


def _tensors(specs: Mapping[str, TensorSpec]) -> tuple[TensorReport, ...]:
    return tuple(TensorReport(spec.name, spec.dtype, spec.shape, spec.is_optional) for spec in specs.values())
