"""Writes the trained model's answers to generated requests, and warm-up requests, into an artifact."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from model_export.exporter.predict_requests import predict_requests
from model_export.exporter.summations import with_summations
from model_export.exporter.warmup_requests import lookup_warmup, write_warmup
from model_export.graphs.lookup_features import predict_entry, tensor_features
from model_export.graphs.signature_names import RECORDED_PATH
from model_export.graphs.signature_runner import InputInfo, read_saved_model, read_signature_inputs, serving_graph
from model_export.graphs.source import ExportSource, SavedParts
from model_export.parity.oracle import read_keys
from model_export.parity.parity_cases import CaseWriter
from model_export.parity.prediction_log import LoggedPrediction, write_predictions
from service.artifact.manifest import Manifest, SignatureEntry
from service.types import Array


def record_requests(
    artifact: Path, manifest: Manifest, source: ExportSource, parts: SavedParts, *, warmup: bool
) -> Manifest:
    """Runs generated requests on the model in memory; writes the answers and warm-up requests into the artifact.

    Returns:
      The manifest, whose predict entries now hold the inputs that the SavedModel has, and the order in which its graph
      adds up rows.
    """
    inputs = read_signature_inputs(artifact)
    meta_graph = serving_graph(read_saved_model(artifact), artifact)
    signatures = dict(manifest.signatures)
    recorded: list[LoggedPrediction] = []
    warm: dict[str, list[Mapping[str, Array]]] = {}
    for name, entry in manifest.signatures.items():
        if entry.kind == "lookup":
            warm[name] = list(lookup_requests(artifact, manifest, entry, inputs[name]))
            continue
        described = parts.predict[name]
        predict = predict_entry(source.spec, tensor_features(described), list(inputs[name]))
        signatures[name] = with_summations(predict, meta_graph, name)
        keys = read_keys(artifact, manifest, _id_dtypes(source, inputs[name]))
        requests = list(predict_requests(manifest, source.spec, described, inputs[name], keys))
        recorded += [LoggedPrediction(name, request, source.predict(name, request)) for request in requests]
        warm[name] = list(requests[:1])
    if recorded:
        write_predictions(artifact / RECORDED_PATH, recorded)
    if warmup:
        write_warmup(artifact, warm)
    return dataclasses.replace(manifest, signatures=signatures)


def _id_dtypes(source: ExportSource, inputs: Mapping[str, InputInfo]) -> dict[str, str]:
    # A signature of tf.Examples has no input for a feature alone; then the feature's ids have the dtype of its keys.
    dtypes = {}
    for feature in source.spec.features:
        info = inputs.get(feature.ids_input)
        dtypes[feature.name] = feature.id_dtype if info is None else info.dtype
    return dtypes


def lookup_requests(
    artifact: Path, manifest: Manifest, entry: SignatureEntry, inputs: Mapping[str, InputInfo]
) -> list[dict[str, Array]]:
    id_dtypes = {name: inputs[feature.ids].dtype for name, feature in entry.features.items()}
    writer = CaseWriter(manifest, entry, read_keys(artifact, manifest, id_dtypes), id_dtypes)
    return list(lookup_warmup(writer, {name: info.dtype for name, info in inputs.items()}))
