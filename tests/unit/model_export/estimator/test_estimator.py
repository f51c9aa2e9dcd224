"""The estimator of tables and a network: its arguments, configuration, specs, checkpoints and warm starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.frameworks import tf
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import AdagradParameters
from model_export.statistics.files import read_statistics
from tests.unit.model_export.estimator.small_model import (
    ROWS,
    TABLE,
    TABLE_NAME,
    WEIGHT,
    column,
    estimator_of,
    gradients,
    input_fn,
    model_fn_of,
    one_epoch,
    recorder,
    vectors_of,
)
from tests.unit.model_export.late import late

with late():
    from tensorflow.python.platform import tf_logging

    from model_export.estimator import checkpoints
    from model_export.estimator.checkpoints import WarmStartSettings, warm_start_settings
    from model_export.estimator.estimator import EmbeddingEstimator
    from model_export.estimator.estimator_spec import EstimatorSpec, ExportSavedModelApiVersion, ModeKeys, PredictOutput
    from model_export.estimator.run_config import InputPipelineConfig, RunConfig, TPUConfig
    from model_export.estimator.sessions import StepRateHook, features_and_labels

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingEstimator:
    """The estimator of the small model after two steps of training."""
    return estimator_of(tmp_path_factory.mktemp("trained"), predict_batch_size=4).train(input_fn, steps=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": None}, "`config` must be provided with type `RunConfig`"),
        ({"params": {"batch_size": 3}}, "are reserved keys but existed in params"),
        ({"params": {"context": 3}}, "are reserved keys but existed in params"),
        ({"train_batch_size": None}, "`train_batch_size` cannot be `None`"),
        ({"train_batch_size": 0}, "train_batch_size must be positive, got 0"),
        ({"eval_batch_size": -1}, "eval_batch_size must be positive, got -1"),
        ({"predict_batch_size": 0}, "predict_batch_size must be positive, got 0"),
        ({"model_fn": None}, "model_fn must be provided"),
        ({"model_fn": lambda labels, params: None}, "must include features argument"),
        ({"model_fn": lambda features: None}, "does not include params argument"),
        ({"model_fn": lambda features, params, extra: None}, "not expected args: \\['extra'\\]"),
        ({"export_saved_model_api_version": 3}, "export_saved_model_api_version should be 1 or 2; got 3"),
        ({"warm_start_from": 3}, "warm_start_from must be a string or a WarmStartSettings"),
        ({"embedding_config_spec": 3}, "embedding_config_spec must be an EmbeddingConfigSpec"),
    ],
)
def test_the_constructor_refuses(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    if arguments.get("embedding_config_spec") == 3:
        arguments = {**arguments, "use_tpu": False}
    with pytest.raises(ValueError, match=message):
        estimator_of(tmp_path, **arguments)


def test_the_constructor_refuses_a_configuration(tmp_path: Path) -> None:
    broadcast = RunConfig(TPUConfig(per_host_input_for_training=InputPipelineConfig.BROADCAST))
    with pytest.raises(ValueError, match="Only PER_HOST_V1 and PER_HOST_V2 is supported .* got 4"):
        estimator_of(tmp_path, config=broadcast)
    parallel = RunConfig(TPUConfig(per_host_input_for_training=False, num_cores_per_replica=2))
    with pytest.raises(ValueError, match="Model parallelism only supports per host input"):
        estimator_of(tmp_path, config=parallel, embedding_config_spec=None)
    with pytest.raises(ValueError, match="`model_dir` are set both in constructor and `RunConfig`"):
        estimator_of(tmp_path, config=RunConfig(model_dir="elsewhere"))


def test_a_batch_size_is_an_integer(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="train_batch_size must be int, got <class 'float'>"):
        estimator_of(tmp_path, train_batch_size=4.0)


def test_use_tpu_false_needs_no_batch_size_and_leaves_it_out_of_params(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def noting(params: dict[str, Any]) -> Any:
        seen.append(params)
        return one_epoch(params)

    estimator_of(tmp_path, use_tpu=False, train_batch_size=None).train(noting, steps=1)
    assert seen == [{}]


def test_arguments_come_in_tpu_estimators_order(tmp_path: Path) -> None:
    config = RunConfig()
    estimator = EmbeddingEstimator(model_fn_of([column()]), tmp_path, config, {"units": 3}, True, 8, 9, 10)
    assert estimator.model_dir == str(tmp_path)
    assert estimator.params == {"units": 3}
    assert estimator.config.model_dir == str(tmp_path)
    assert dict(estimator.model.batch_sizes) == {"train": 8, "eval": 9, "infer": 10}
    assert (estimator.export_to_tpu, estimator.export_to_cpu) == (True, True)
    assert estimator.api_version is ExportSavedModelApiVersion.V1


def test_the_model_dir_is_the_configs_or_a_temporary_one() -> None:
    model_fn = model_fn_of([column()])
    assert EmbeddingEstimator(model_fn, config=RunConfig(model_dir="m"), train_batch_size=1).model_dir == "m"
    temporary = EmbeddingEstimator(model_fn, config=RunConfig(), train_batch_size=1).model_dir
    assert Path(temporary).is_dir()
    Path(temporary).rmdir()


def test_functions_get_copies_of_params_and_config_with_batch_size_and_use_tpu(tmp_path: Path) -> None:
    seen: list[tuple[str, dict[str, Any], int]] = []
    inner = model_fn_of([column()])

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any], config: RunConfig) -> EstimatorSpec:
        seen.append((mode, dict(params), config.tf_random_seed or 0))
        params["list"].append("changed")
        config.tf_random_seed = 99
        spec: EstimatorSpec = inner(features, labels, mode, params)
        return spec

    def reading(params: dict[str, Any], config: RunConfig, mode: str) -> Any:
        seen.append((f"input {mode}", dict(params), config.tf_random_seed or 0))
        return one_epoch(params)

    estimator = estimator_of(
        tmp_path, model_fn=model_fn, params={"list": []}, eval_batch_size=2, predict_batch_size=3, eval_on_tpu=False
    )
    estimator.train(reading)
    estimator.evaluate(reading)
    list(estimator.predict(reading))
    expected = []
    for mode, size in (("train", 4), ("eval", 2), ("infer", 3)):
        expected.append((f"input {mode}", {"list": [], "batch_size": size}, 1))
        expected.append((mode, {"list": ["changed"], "batch_size": size, "use_tpu": False}, 1))
    assert seen == expected
    assert estimator.params == {"list": []}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 1, "max_steps": 1}, "Can not provide both steps and max_steps."),
        ({"steps": 0}, "Must specify steps > 0, given: 0"),
        ({"max_steps": -1}, "Must specify max_steps > 0, given: -1"),
    ],
)
def test_train_refuses_steps(tmp_path: Path, given: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimator_of(tmp_path).train(input_fn, **given)


def test_train_refuses_to_be_one_of_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = estimator_of(tmp_path)
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}')
    with pytest.raises(ValueError, match="TF_CONFIG lists several processes"):
        estimator.train(input_fn, steps=1)
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"], "evaluator": ["b:1"]}}')
    assert estimator.train(input_fn, steps=1) is estimator


def test_hooks_and_listeners_have_a_type(tmp_path: Path) -> None:
    estimator = estimator_of(tmp_path)
    with pytest.raises(TypeError, match="Hooks must be a SessionRunHook, given: 3"):
        estimator.train(input_fn, hooks=[3], steps=1)
    with pytest.raises(TypeError, match="saving_listeners must be a list of CheckpointSaverListener, given: 3"):
        estimator.train(input_fn, steps=1, saving_listeners=[3])


def test_input_fn_takes_params(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not include params argument"):
        estimator_of(tmp_path).train(lambda: None, steps=1)


def test_model_fn_returns_an_estimator_spec_of_its_mode(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model_fn should return an EstimatorSpec"):
        estimator_of(tmp_path, model_fn=lambda features, labels, params: 3, embedding_config_spec=None).train(
            input_fn, steps=1
        )

    def always_predicts(features: Any, labels: Any, params: dict[str, Any]) -> EstimatorSpec:
        return EstimatorSpec(ModeKeys.PREDICT, {"one": tf.constant([1.0])})

    with pytest.raises(ValueError, match="EstimatorSpec of mode 'infer', it was called with 'train'"):
        estimator_of(tmp_path, model_fn=always_predicts, embedding_config_spec=None).train(input_fn, steps=1)


def test_labels_need_a_model_fn_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model_fn does not take labels, but input_fn returns labels."):
        estimator_of(tmp_path, model_fn=lambda features, params: None).train(input_fn, steps=1)


def test_evaluate_gives_metrics_the_mean_loss_and_the_step(trained: EmbeddingEstimator) -> None:
    table, weight = (trained.get_variable_value(name) for name in (TABLE_NAME, "weight"))
    loss, _, _ = gradients(table, weight)
    got = trained.evaluate(input_fn, steps=3, name="held_out")
    assert set(got) == {"loss", "global_step", "mean_answer"}
    assert got["global_step"] == 2
    assert got["loss"] == pytest.approx(loss, rel=1e-5)
    assert got["mean_answer"] == pytest.approx(float((vectors_of(table) @ weight).mean()), rel=1e-5)
    assert list(Path(trained.eval_dir("held_out")).glob("events.*"))
    with pytest.raises(ValueError, match="Must specify steps > 0"):
        trained.evaluate(input_fn, steps=0)


def test_evaluate_and_predict_take_any_checkpoint_or_initial_values(
    trained: EmbeddingEstimator, tmp_path: Path
) -> None:
    first = str(Path(trained.model_dir) / "model.ckpt-0")
    loss, _, _ = gradients(TABLE, WEIGHT)
    assert trained.evaluate(one_epoch, checkpoint_path=first)["loss"] == pytest.approx(loss, rel=1e-5)
    untrained = estimator_of(tmp_path)
    assert untrained.evaluate(one_epoch) == {
        "loss": pytest.approx(loss, rel=1e-5),
        "mean_answer": pytest.approx(float((vectors_of(TABLE) @ WEIGHT).mean()), rel=1e-5),
        "global_step": 0,
    }
    (batch,) = trained.predict(one_epoch, checkpoint_path=first, yield_single_examples=False)
    np.testing.assert_allclose(batch["answer"], vectors_of(TABLE) @ WEIGHT, rtol=1e-5)


def test_hooks_run_in_evaluate_and_predict(trained: EmbeddingEstimator) -> None:
    evaluated, predicted = recorder(), recorder()
    trained.evaluate(one_epoch, hooks=[evaluated])
    assert len(list(trained.predict(one_epoch, hooks=[predicted]))) == 4
    assert (evaluated.runs, predicted.runs) == (1, 1), "one batch each"
    assert (evaluated.ended, predicted.ended) == (1, 1)


def test_predict_yields_rows_of_the_chosen_keys(trained: EmbeddingEstimator) -> None:
    table, weight = (trained.get_variable_value(name) for name in (TABLE_NAME, "weight"))
    rows = list(trained.predict(one_epoch, predict_keys=["answer"]))
    assert [set(row) for row in rows] == [{"answer"}] * 4
    np.testing.assert_allclose([row["answer"] for row in rows], vectors_of(table) @ weight, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="Expected to run at least one output from"):
        next(trained.predict(one_epoch, predict_keys=["nothing"]))


def test_a_predict_that_is_closed_early_leaves_nothing_behind(trained: EmbeddingEstimator) -> None:
    rows = trained.predict(input_fn)
    assert set(next(rows)) == {"answer", "vectors"}
    with tf.Graph().as_default():
        assert set(next(rows)) == {"answer", "vectors"}
    rows.close()
    assert list(rows) == []


def test_variables_of_a_checkpoint_by_name(trained: EmbeddingEstimator, tmp_path: Path) -> None:
    assert trained.get_variable_names() == [TABLE_NAME, "global_step", "weight"]
    assert trained.get_variable_value("global_step") == 2
    assert trained.latest_checkpoint() == str(Path(trained.model_dir) / "model.ckpt-2")
    with pytest.raises(ValueError, match="'nothing' is not in the checkpoint"):
        trained.get_variable_value("nothing")
    with pytest.raises(ValueError, match="Could not find trained model in model_dir"):
        estimator_of(tmp_path).get_variable_names()


def test_batch_axis_and_eval_on_tpu_change_nothing(trained: EmbeddingEstimator, tmp_path: Path) -> None:
    other = estimator_of(tmp_path, batch_axis=[0, 0], eval_on_tpu=False).train(input_fn, steps=2)
    np.testing.assert_array_equal(other.get_variable_value(TABLE_NAME), trained.get_variable_value(TABLE_NAME))


# The strings of ModeKeys.
TRAIN, EVAL, PREDICT = "train", "eval", "infer"


@pytest.fixture
def graph() -> Iterator[Any]:
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


def test_hooks_host_call_and_scaffold_of_a_spec_run(tmp_path: Path) -> None:
    inner = model_fn_of(estimator_of(tmp_path).model.embedding.feature_columns)
    hooks = {name: recorder() for name in ("training_hooks", "evaluation_hooks", "prediction_hooks")}
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


def test_defaults_are_tensorflows() -> None:
    config = RunConfig()
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, 600)
    assert (config.save_summary_steps, config.log_step_count_steps, config.keep_checkpoint_max) == (100, 100, 5)
    assert (config.master, config.evaluation_master, config.is_chief, config.task_type) == ("", "", True, "worker")
    assert config.tpu_config == TPUConfig()
    assert TPUConfig().iterations_per_loop == 2
    assert TPUConfig().per_host_input_for_training == InputPipelineConfig.PER_HOST_V1
    assert TPUConfig(per_host_input_for_training=False).per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"save_checkpoints_steps": 5}, (5, None)),
        ({"save_checkpoints_secs": 7}, (None, 7)),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": None}, (None, None)),
    ],
)
def test_one_interval_of_checkpoints(given: dict[str, Any], expected: tuple[Any, Any]) -> None:
    config = RunConfig(**given)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"save_checkpoints_steps": 1, "save_checkpoints_secs": 1}, "cannot be both set"),
        ({"save_checkpoints_steps": -1}, "save_checkpoints_steps should be >= 0"),
        ({"keep_checkpoint_max": -1}, "keep_checkpoint_max should be >= 0"),
        ({"save_summary_steps": -1}, "save_summary_steps should be >= 0"),
        ({"log_step_count_steps": 0}, "log_step_count_steps should be > 0"),
        ({"keep_checkpoint_every_n_hours": 0}, "keep_checkpoint_every_n_hours should be > 0"),
        ({"session_creation_timeout_secs": 0}, "session_creation_timeout_secs should be > 0"),
        ({"model_dir": ""}, "model_dir should be non-empty"),
        ({"session_config": 3}, "session_config must be instance of ConfigProto"),
        ({"tf_random_seed": 1.5}, "tf_random_seed must be integer"),
        ({"tpu_config": 3}, "tpu_config must be a TPUConfig"),
        ({"master": "grpc://10.0.0.1:8470"}, "sessions run in this process only"),
        ({"cluster": object()}, "cluster is set: TF_CONFIG and train_distribute name"),
        ({"train_distribute": object()}, "train_distribute must be a tf.distribute.MultiWorkerMirroredStrategy"),
    ],
)
def test_run_config_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig(**given)


def test_a_copy_with_changes() -> None:
    session = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    config = RunConfig(TPUConfig(7), model_dir=Path("m"), save_checkpoints_steps=3, session_config=session)
    changed = config.replace(model_dir="n", tf_random_seed=4)
    assert (config.model_dir, changed.model_dir, changed.tf_random_seed) == ("m", "n", 4)
    assert (changed.save_checkpoints_steps, changed.save_checkpoints_secs) == (3, None)
    assert changed.tpu_config.iterations_per_loop == 7
    assert changed.session_config.allow_soft_placement


@pytest.mark.parametrize("given", [5, "5", "60s", "2m", "1h"])
def test_iterations_per_loop_is_a_number_or_a_time(given: Any) -> None:
    assert TPUConfig(given).iterations_per_loop == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"iterations_per_loop": 0}, "Invalid TPUConfig `iterations_per_loop` value 0"),
        ({"iterations_per_loop": "5d"}, "Invalid TPUConfig `iterations_per_loop` value '5d'"),
        ({"num_shards": 0}, "num_shards must be positive, got 0"),
        ({"num_cores_per_replica": 3}, "num_cores_per_replica must be one of"),
        ({"initial_infeed_sleep_secs": -1}, "initial_infeed_sleep_secs must be positive"),
        ({"eval_training_input_configuration": 4}, "must be PER_HOST_V1 or SLICED; got 4"),
        ({"input_partition_dims": [1, 2, 3]}, "one or two elements"),
        ({"input_partition_dims": [[1, 2]]}, "only supported in PER_HOST_V2 mode"),
        # 3 is InputPipelineConfig.PER_HOST_V2.
        (
            {"input_partition_dims": [[1, 2]], "per_host_input_for_training": 3},
            "requires setting num_cores_per_replica",
        ),
    ],
)
def test_tpu_config_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TPUConfig(**given)


@pytest.mark.parametrize("kind", ["dataset", "tensors"])
@pytest.mark.parametrize("has_labels", [True, False])
def test_datasets_and_tensors_with_and_without_labels(kind: str, has_labels: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given: Any = ({"a": tf.constant([3])}, tf.constant([4])) if has_labels else {"a": tf.constant([3])}
        if kind == "dataset":
            given = tf.data.Dataset.from_tensors(given)
        features, labels, hooks = features_and_labels(given)
        assert len(hooks) == (kind == "dataset")
        for hook in hooks:
            hook.after_create_session(session, None)
        fetched = session.run((features, labels) if has_labels else (features,))
        assert fetched[0]["a"].tolist() == [3]
        assert (labels is None) != has_labels and (not has_labels or fetched[1].tolist() == [4])


def test_another_number_of_elements_is_refused() -> None:
    with pytest.raises(ValueError, match="as a len 2 tuple, got 3 elements"):
        features_and_labels((1, 2, 3))


def warnings_of(fetched: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns how often the hook warns where the step was fetched with these values."""
    told: list[str] = []
    # TensorFlow logs only the first five warnings of a process, so the test replaces the function that logs them.
    monkeypatch.setattr(tf_logging.found(), "log_first_n", lambda level, text, n, *values: told.append(text))
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        hook = StepRateHook(every_n_steps=1000)
        hook.begin()
        for number in fetched:
            context = v1.train.SessionRunContext(hook.before_run(None), session)
            hook.after_run(context, v1.train.SessionRunValues(number, None, None))
    return sum("has not been increased" in text for text in told)


def test_a_growing_step_that_was_read_before_or_after_is_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings_of([1, 1, 2, 3, 3, 4, 6, 6, 7], monkeypatch) == 0


def test_a_step_that_stands_still_is_one(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings_of([1, 1, 1], monkeypatch) == 1


def test_a_path_is_a_checkpoint_its_folder_or_a_saved_model(tmp_path: Path) -> None:
    assert warm_start_settings(None) is None
    assert warm_start_settings(str(tmp_path)) == WarmStartSettings(str(tmp_path))
    given = WarmStartSettings("x", None)
    assert warm_start_settings(given) is given
    (tmp_path / "variables").mkdir()
    (tmp_path / "variables" / "variables.index").touch()
    assert warm_start_settings(tmp_path) == WarmStartSettings(str(tmp_path / "variables" / "variables"))
    with pytest.raises(ValueError, match="must be a string or a WarmStartSettings, instead got <class 'int'>"):
        warm_start_settings(3)
    with pytest.raises(ValueError, match="`ckpt_to_initialize_from` MUST be set"):
        WarmStartSettings("")


def test_tables_and_weights_start_from_another_model_until_there_is_a_checkpoint(tmp_path: Path) -> None:
    first = estimator_of(tmp_path / "first").train(input_fn, steps=3)
    renamed = WarmStartSettings(first.model_dir, var_name_to_prev_var_name={"weight": "weight"})
    second = estimator_of(tmp_path / "second", warm_start_from=renamed)
    assert second.evaluate(one_epoch)["loss"] == first.evaluate(one_epoch)["loss"]
    (batch,) = second.predict(one_epoch, yield_single_examples=False)
    (expected,) = first.predict(one_epoch, yield_single_examples=False)
    np.testing.assert_array_equal(batch["vectors"], expected["vectors"])
    second.train(input_fn, steps=1)
    assert second.get_variable_value("global_step") == 1
    # Both estimators have the same rows after three steps and get the same batch. SGD has no state, so a first step of
    # `second` equals a fourth step of `first`.
    first.train(input_fn, steps=1)
    np.testing.assert_array_equal(second.get_variable_value(TABLE_NAME), first.get_variable_value(TABLE_NAME))
    again = estimator_of(tmp_path / "second", warm_start_from=str(tmp_path / "nothing here"))
    assert again.train(input_fn, steps=1).get_variable_value("global_step") == 2


def test_losses_of_all_runs_of_a_folder(tmp_path: Path) -> None:
    estimator_of(tmp_path).train(input_fn, steps=2)
    estimator_of(tmp_path).train(input_fn, steps=1)
    history = checkpoints.loss_history(str(tmp_path))
    assert [point["step"] for point in history] == [1, 2, 3]
    first, _, _ = gradients(TABLE, WEIGHT)
    assert history[0]["loss"] == pytest.approx(first, rel=1e-5)
    assert history[2]["loss"] < history[1]["loss"] < history[0]["loss"]
    assert checkpoints.global_step(checkpoints.latest_checkpoint(str(tmp_path))) == 3


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    assert checkpoints.latest_checkpoint(str(tmp_path)) is None
    assert checkpoints.global_step(None) == 0
    assert checkpoints.loss_history(str(tmp_path)) == []


def test_a_training_writes_statistics_of_its_ids(tmp_path: Path) -> None:
    folder = tmp_path / "statistics"
    spec = EmbeddingConfigSpec([column()], AdagradParameters(0.1), profile_data_directory=str(folder))
    estimator_of(tmp_path / "model", spec).train(input_fn, steps=2)
    (statistics,) = read_statistics(folder)
    # The collector reads step 0 of every training, and of the others only a sample, which has no step 1 here.
    assert (statistics.table.name, statistics.examples, statistics.ids) == ("c", len(ROWS), sum(map(len, ROWS)))
    assert {(hot.id, hot.count) for hot in statistics.hot_ids(5)} == {(0, 1), (1, 1), (2, 2), (3, 2)}


def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    estimator_of(tmp_path).train(input_fn, steps=1)
    assert not list(tmp_path.rglob("lookup_statistics*"))
