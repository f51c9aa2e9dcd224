"""Each field of EstimatorSpec has its checks, and its effect in the estimator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_export.estimator.estimator_spec import EstimatorSpec, ModeKeys, PredictOutput
from model_export.tensorflow_setup import tf
from tests.unit.model_export.estimator.small_model import estimator_of, input_fn, model_fn_of, one_epoch

pytestmark = pytest.mark.tf

TRAIN, EVAL, PREDICT = ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT


@pytest.fixture
def graph() -> Iterator[Any]:
    """A v1 graph."""
    with tf.Graph().as_default() as graph:
        yield graph


def test_fields_stand_in_tpu_estimator_specs_order(graph: Any) -> None:
    names = (
        "mode predictions loss train_op eval_metrics export_outputs scaffold_fn host_call training_hooks "
        "evaluation_hooks prediction_hooks"
    )
    assert list(EstimatorSpec._fields) == names.split()
    loss, train_op = tf.constant([[3.0]]), tf.no_op()
    spec = EstimatorSpec(TRAIN, None, loss, train_op)
    assert spec.loss.shape == [] and spec.predictions == {} and spec.training_hooks == ()
    changed = spec._replace(training_hooks=[tf.compat.v1.train.SessionRunHook()])
    assert len(changed.training_hooks) == 1 and changed.train_op is train_op
    with pytest.raises(ValueError, match="mode of EstimatorSpec cannot be changed"):
        spec._replace(mode=EVAL)


@pytest.mark.parametrize(
    ("mode", "fields", "error", "message"),
    [
        ("fit", {}, ValueError, "mode is 'fit'"),
        (TRAIN, {"train": True}, ValueError, "Missing loss."),
        (TRAIN, {"loss": 1.0}, ValueError, "Missing train_op."),
        (EVAL, {}, ValueError, "Missing loss."),
        (EVAL, {"loss": [1.0, 2.0]}, ValueError, "Loss must be scalar"),
        (PREDICT, {}, ValueError, "Missing predictions."),
    ],
)
def test_what_a_mode_needs(graph: Any, mode: str, fields: dict[str, Any], error: type[Exception], message: str) -> None:
    loss = None if "loss" not in fields else tf.constant(fields["loss"])
    with pytest.raises(error, match=message):
        EstimatorSpec(mode, loss=loss, train_op=tf.no_op() if "train" in fields else None)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"loss": 3.0}, TypeError, "loss must be Tensor, given: 3.0"),
        ({"train_op": 3}, TypeError, "train_op must be Operation or Tensor, given: 3"),
        ({"predictions": {"a": 3}}, TypeError, r"predictions\[a\] must be Tensor, given: 3"),
        ({"eval_metrics": 3}, ValueError, "eval_metrics should be tuple or list"),
        ({"eval_metrics": (1, 2, 3)}, ValueError, "eval_metrics should have two elements."),
        ({"eval_metrics": (1, [])}, TypeError, r"eval_metrics\[0\] should be callable."),
        ({"eval_metrics": (print, 3)}, ValueError, r"eval_metrics\[1\] should be tuple or list, or dict."),
        ({"host_call": (lambda a: a, [])}, RuntimeError, "length of tensors 0 does not match method args"),
        ({"host_call": 3}, ValueError, "host_call should be tuple or list"),
        ({"scaffold_fn": 3}, TypeError, "scaffold_fn must be callable, given: 3"),
        ({"training_hooks": [3]}, TypeError, "All hooks must be SessionRunHook instances, given: 3"),
        ({"evaluation_hooks": [3]}, TypeError, "All hooks must be SessionRunHook instances, given: 3"),
        ({"prediction_hooks": [3]}, TypeError, "All hooks must be SessionRunHook instances, given: 3"),
        ({"export_outputs": 3}, TypeError, "export_outputs must be dict, given: 3"),
        ({"export_outputs": {"a": 3}}, TypeError, "Values in export_outputs must be ExportOutput objects"),
    ],
)
def test_fields_have_types(graph: Any, fields: dict[str, Any], error: type[Exception], message: str) -> None:
    one = tf.constant([1.0])
    with pytest.raises(error, match=message):
        EstimatorSpec(PREDICT, **{"predictions": {"one": one}, **fields})


def test_tensors_are_of_the_graph_of_this_call(graph: Any) -> None:
    loss, train_op = tf.constant(1.0), tf.no_op()
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="must be from the default graph"):
            EstimatorSpec(EVAL, loss=loss)
        with pytest.raises(ValueError, match="must be from the default graph"):
            EstimatorSpec(TRAIN, loss=tf.constant(1.0), train_op=train_op)


def test_heads_of_a_prediction(graph: Any) -> None:
    one = tf.constant([1.0])
    default = EstimatorSpec(PREDICT, {"one": one}).export_outputs
    assert set(default) == {"serving_default"} and set(default["serving_default"].outputs) == {"one"}
    alone = EstimatorSpec(PREDICT, {"one": one}, export_outputs={"head": PredictOutput(one)}).export_outputs
    assert set(alone) == {"head", "serving_default"} and set(alone["head"].outputs) == {"output"}
    with pytest.raises(ValueError, match="Multiple export_outputs were provided"):
        EstimatorSpec(PREDICT, one, export_outputs={"a": PredictOutput(one), "b": PredictOutput(one)})


class Count(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Counts runs."""

    runs = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.runs += 1


def test_hooks_host_call_and_scaffold_of_a_spec_run(tmp_path: Path) -> None:
    inner = model_fn_of(estimator_of(tmp_path).model.embedding.feature_columns)
    hooks = {name: Count() for name in ("training_hooks", "evaluation_hooks", "prediction_hooks")}
    host_calls: list[Any] = []
    initialized: list[str] = []

    def host_call(loss: Any) -> Any:
        counter = tf.compat.v1.get_variable("host_calls", [], tf.int64, tf.zeros_initializer, trainable=False)
        host_calls.append(counter)
        return counter.assign_add(1)

    def scaffold_fn() -> Any:
        return tf.compat.v1.train.Scaffold(init_fn=lambda scaffold, session: initialized.append("train"))

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        spec = inner(features, labels, mode, params)
        call = {"host_call": (host_call, [spec.loss])} if mode == TRAIN else {}
        replaced: EstimatorSpec = spec._replace(**{k: [v] for k, v in hooks.items()}, scaffold_fn=scaffold_fn, **call)
        return replaced

    estimator = estimator_of(tmp_path, model_fn=model_fn).train(input_fn, steps=3)
    assert hooks["training_hooks"].runs == 3
    assert estimator.get_variable_value("host_calls") == 3
    assert initialized == ["train"]
    estimator.evaluate(input_fn, steps=2)
    list(estimator.predict(one_epoch))
    assert hooks["evaluation_hooks"].runs == 2
    assert hooks["prediction_hooks"].runs == 1


def test_eval_metrics_by_name_by_keras_and_not_under_a_taken_name(tmp_path: Path) -> None:
    inner = model_fn_of(estimator_of(tmp_path).model.embedding.feature_columns)

    def with_metrics(metric_fn: Any, tensors: Any) -> Any:
        def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
            replaced: EstimatorSpec = inner(features, labels, mode, params)._replace(
                eval_metrics=(metric_fn, tensors(labels))
            )
            return replaced

        return estimator_of(tmp_path, model_fn=model_fn)

    def keras(labels: Any) -> dict[str, Any]:
        mean = tf.keras.metrics.Mean()
        mean.update_state(labels)
        return {"mean_label": mean}

    # The mean of the labels 1, 0.5, -1 and 2 is 0.625.
    assert with_metrics(keras, lambda labels: {"labels": labels}).evaluate(one_epoch)["mean_label"] == 0.625
    taken = with_metrics(lambda labels: {"loss": (labels, labels)}, lambda labels: [labels])
    with pytest.raises(ValueError, match="Metric with name `loss` is not allowed"):
        taken.evaluate(one_epoch)
    odd = with_metrics(lambda labels: {"odd": labels}, lambda labels: [labels])
    with pytest.raises(TypeError, match=r"must be \(metric_value, update_op\) tuples"):
        odd.evaluate(one_epoch)
