"""Builds the graphs of an exported model, for CPU and TPU: receiver, model_fn in mode PREDICT, and output heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from model_export.columns.device_lookup import cpu_lookups
from model_export.estimator.embedding_tables import TableRecorder
from model_export.estimator.export_outputs import (
    ClassificationOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
    signature_defs,
)
from model_export.estimator.model_graph import Model, build_model_graph, call_model, model_features
from model_export.estimator.modes import ExportSavedModelApiVersion, ModeKeys
from model_export.graphs import tpu_graph
from model_export.tensorflow_setup import tf


@dataclass(frozen=True, slots=True)
class ServingGraph:
    """A serving graph that was built in the current tf.Graph: its inputs, heads and tables.

    heads: name -> ExportOutput of model_fn; one is named serving_default.
    tables: embedding table -> its variable.
    scaffold_fn: model_fn's, or None.
    """

    receiver: Any
    heads: Mapping[str, ExportOutput]
    tables: Mapping[str, Any]
    scaffold_fn: Callable[[], Any] | None

    def definitions(self) -> dict[str, Any]:
        """Returns the SignatureDefs of all heads by signature name, for the receiver tensors and each alternative."""
        alternatives = getattr(self.receiver, "receiver_tensors_alternatives", None)
        return signature_defs(self.heads, self.receiver.receiver_tensors, alternatives)


def cpu_serving_graph(model: Model, receiver_fn: Callable[[], Any]) -> ServingGraph:
    """Builds the graph of the MetaGraph tagged `serve`, in which every column does TensorFlow's CPU lookup."""
    _start(model)
    receiver = receiver_fn()
    with cpu_lookups():
        built = build_model_graph(model, receiver.features, None, ModeKeys.PREDICT, is_export=True)
    return ServingGraph(receiver, built.spec.export_outputs, built.tables, built.spec.scaffold_fn)


def tpu_serving_graph(
    model: Model, receiver_fn: Callable[[], Any], api_version: ExportSavedModelApiVersion
) -> ServingGraph:
    """Builds the {serve,tpu} graph. API V1 places all of model_fn on the TPU; with V2, model_fn places its ops."""
    _start(model)
    receiver = receiver_fn()
    recorder = TableRecorder(model.embedding, keeps_from_optimizer=False)
    with recorder.recording():
        features = model_features(model, receiver.features, recorder)
        if api_version is ExportSavedModelApiVersion.V2:
            with tpu_graph.tpu_inference():
                spec = call_model(model, features, None, ModeKeys.PREDICT, is_export=True, use_tpu=True)
            return ServingGraph(receiver, spec.export_outputs, {}, spec.scaffold_fn)
        return ServingGraph(receiver, _heads_on_tpu(model, features), {}, None)


def _heads_on_tpu(model: Model, features: Any) -> dict[str, ExportOutput]:
    inside: dict[str, ExportOutput] = {}

    def dense() -> dict[str, Any]:
        spec = call_model(model, features, None, ModeKeys.PREDICT, is_export=True, use_tpu=True)
        inside.update(spec.export_outputs)
        return {f"{head}/{name}": tensor for head, output in inside.items() for name, tensor in output.outputs.items()}

    tensors = tpu_graph.tpu_call(dense)
    return {
        head: _clone(output, {name: tensors[f"{head}/{name}"] for name in output.outputs})
        for head, output in inside.items()
    }


def _clone(output: ExportOutput, tensors: dict[str, Any]) -> ExportOutput:
    match output:
        case ClassificationOutput():
            return ClassificationOutput(**tensors)
        case RegressionOutput():
            return RegressionOutput(tensors["outputs"])
        case _:
            return PredictOutput(tensors)


def _start(model: Model) -> None:
    tf.compat.v1.set_random_seed(model.config.tf_random_seed)
    tf.compat.v1.train.create_global_step()
