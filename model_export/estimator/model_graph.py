"""Builds the graphs of an estimator's model: for training and evaluation, and for the MetaGraphs of an export.

A tf.compat.v1.tpu.CrossShardOptimizer, the wrapper in old TPU scripts, is made to call its inner optimizer directly: it
sums gradients over TPU cores with the operation CrossReplicaSum, which has no CPU kernel. Our estimator has one
replica, whose gradient already is the sum. Source: tensorflow/python/tpu/tpu_optimizer.py at v2.21.0.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from model_export.columns.device_lookup import cpu_lookups
from model_export.estimator.embedding_tables import TableRecorder, with_activations
from model_export.estimator.estimator_spec import (
    ClassificationOutput,
    EstimatorSpec,
    ExportOutput,
    ExportSavedModelApiVersion,
    ModeKeys,
    PredictOutput,
    RegressionOutput,
    call_model_fn,
    signature_defs,
)
from model_export.estimator.run_config import RunConfig
from model_export.estimator.training_processes import OneProcess
from model_export.graphs import tpu_graph
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.tensorflow_setup import tf
from model_export.training.table_optimizers import TableTraining, train_tables

_LOGGER = logging.getLogger(__name__)
_WRAPPER = tf.compat.v1.tpu.CrossShardOptimizer


@dataclass(slots=True)
class _Unwrapping:
    num_shards: int | None
    is_logged: bool = False


# The state of the innermost `unwrapped` block of the running thread; None outside of all blocks.
_ACTIVE: ContextVar[_Unwrapping | None] = ContextVar("unwrapping", default=None)


def _patch(name: str) -> None:
    # TensorFlow has no hook for this. Code that runs outside of an `unwrapped` block still gets the original method.
    original = getattr(_WRAPPER, name)

    def method(wrapper: Any, *args: Any, **named: Any) -> Any:
        state = _ACTIVE.get()
        if state is None:
            return original(wrapper, *args, **named)
        _check(wrapper, state)
        return getattr(wrapper._opt, name)(*args, **named)

    setattr(_WRAPPER, name, method)


_patch("compute_gradients")
_patch("apply_gradients")


@contextmanager
def unwrapped(num_shards: int | None) -> Iterator[None]:
    """Makes this thread's CrossShardOptimizers train, in the `with` block, as the optimizers that they wrap.

    Writes one log line when this happens.

    Raises:
      ValueError: a CrossShardOptimizer has a group_assignment of several replicas, or sums the gradients of several
        shards.
    """
    token = _ACTIVE.set(_Unwrapping(num_shards))
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def _check(wrapper: Any, state: _Unwrapping) -> None:
    groups = wrapper._group_assignment
    if groups and groups != [[0]]:
        raise ValueError(
            f"CrossShardOptimizer has group_assignment={groups}, but this estimator trains one replica: leave "
            "group_assignment out"
        )
    is_sum = wrapper._reduction == tf.compat.v1.losses.Reduction.SUM
    if is_sum and (state.num_shards or 1) > 1:
        raise ValueError(
            f"CrossShardOptimizer has reduction=SUM, which adds up the gradients of TPUConfig's num_shards="
            f"{state.num_shards} shards, but this estimator computes one gradient, of the whole batch. Leave reduction "
            "out if the loss is the mean of the batch; set num_shards=1 if the loss is the sum of the batch"
        )
    if not state.is_logged:
        state.is_logged = True
        inside = type(wrapper._opt).__name__
        _LOGGER.warning("CrossShardOptimizer is not needed here: the estimator trains with the %s inside it", inside)


@dataclass(frozen=True, slots=True)
class Model:
    """The functions and settings of an estimator, from which its graphs are built.

    batch_sizes: mode -> params["batch_size"]; a mode without one has no such parameter.
    """

    model_fn: Callable[..., Any]
    params: Mapping[str, Any]
    config: RunConfig
    embedding: EmbeddingConfigSpec | None
    batch_sizes: Mapping[str, int]

    def params_for(self, mode: str, *, is_export: bool = False, use_tpu: bool | None = False) -> dict[str, Any]:
        """Returns a copy of params for model_fn or input_fn, plus use_tpu (unless None) and, except in exports,
        batch_size.
        """
        params = copy.deepcopy(dict(self.params))
        if not is_export and mode in self.batch_sizes:
            # In training, if all workers make each step together, each worker gets an equal share of the batch size.
            shares = self.config.workers_of_a_step if mode == ModeKeys.TRAIN else 1
            params["batch_size"] = self.batch_sizes[mode] // shares
        if use_tpu is not None:
            params["use_tpu"] = use_tpu
        return params


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """The ops that one call of model_fn added to the current graph, and the ops that train its tables.

    tables: embedding table -> its variable.
    train_op: one step of the model's optimizer and of the tables' optimizers; None unless the mode is TRAIN.
    step: scalar int64 placeholder for the tables' optimizers; feed it the global step before the training step.
    """

    spec: EstimatorSpec
    tables: Mapping[str, Any]
    train_op: Any = None
    training: TableTraining | None = None
    step: Any = None


def build_model_graph(
    model: Model,
    features: Any,
    labels: Any,
    mode: str,
    *,
    is_export: bool = False,
    use_tpu: bool = False,
    processes: OneProcess | None = None,
) -> ModelGraph:
    """Calls model_fn in the current graph, which must have a global step; in mode TRAIN, adds the training of its
    tables.

    Raises:
      ValueError: model_fn returned no EstimatorSpec, or did not create the tables of the EmbeddingConfigSpec.
    """
    embedding = model.embedding
    processes = processes or OneProcess(model.config)
    recorder = TableRecorder(
        embedding,
        keeps_from_optimizer=mode == ModeKeys.TRAIN,
        parts=processes.parts,
        is_shared=processes.shares_variables,
    )
    with recorder.recording(), processes.averaging():
        features = model_features(model, features, recorder)
        spec = call_model(model, features, labels, mode, is_export=is_export, use_tpu=use_tpu)
    if embedding is None:
        return ModelGraph(spec, {}, spec.train_op)
    if mode != ModeKeys.TRAIN:
        return ModelGraph(spec, recorder.variables())
    tables = recorder.trained_tables()
    # The ops that update tables run after the ops that read them, because the gradients depend on the loss. But nothing
    # orders a read of the global step before train_op, which increments it, so the step is fed.
    step = tf.compat.v1.placeholder_with_default(tf.compat.v1.train.get_global_step().read_value(), [])
    gradients = processes.joined(tf.gradients(spec.loss, [table.variable for table in tables]))
    training = train_tables(embedding, tables, gradients, step)
    return ModelGraph(spec, recorder.variables(), tf.group(spec.train_op, training.train), training, step)


def model_features(model: Model, features: Any, recorder: TableRecorder) -> Any:
    if model.embedding is None or not model.embedding.feature_to_config_dict:
        return features
    return with_activations(model.embedding, features, recorder)


def call_model(
    model: Model, features: Any, labels: Any, mode: str, *, is_export: bool = False, use_tpu: bool = False
) -> EstimatorSpec:
    with unwrapped(model.config.tpu_config.num_shards):
        spec = call_model_fn(
            model.model_fn,
            features,
            labels,
            params=model.params_for(mode, is_export=is_export, use_tpu=use_tpu),
            config=copy.copy(model.config),
            mode=mode,
        )
    if not isinstance(spec, EstimatorSpec):
        raise ValueError(f"model_fn should return an EstimatorSpec, got {type(spec)}.")
    if spec.mode != mode:
        raise ValueError(f"model_fn returned an EstimatorSpec of mode {spec.mode!r}, it was called with {mode!r}")
    return spec


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
