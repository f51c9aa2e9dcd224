"""EmbeddingEstimator's constructor and methods, argument by argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.estimator.estimator import EmbeddingEstimator
from model_export.estimator.estimator_spec import EstimatorSpec, ExportSavedModelApiVersion, ModeKeys
from model_export.estimator.run_config import InputPipelineConfig, RunConfig, TPUConfig
from model_export.tensorflow_setup import tf
from tests.unit.model_export.estimator.small_model import (
    TABLE,
    TABLE_NAME,
    WEIGHT,
    column,
    estimator_of,
    gradients,
    input_fn,
    model_fn_of,
    one_epoch,
    vectors_of,
)

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
        (
            {"config": RunConfig(TPUConfig(per_host_input_for_training=InputPipelineConfig.BROADCAST))},
            "Only PER_HOST_V1 and PER_HOST_V2 is supported when using TPU Embedding; got 4",
        ),
        (
            {
                "config": RunConfig(TPUConfig(per_host_input_for_training=False, num_cores_per_replica=2)),
                "embedding_config_spec": None,
            },
            "Model parallelism only supports per host input",
        ),
        ({"config": RunConfig(model_dir="elsewhere")}, "`model_dir` are set both in constructor and `RunConfig`"),
    ],
)
def test_the_constructor_refuses(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    if arguments.get("embedding_config_spec") == 3:
        arguments = {**arguments, "use_tpu": False}
    with pytest.raises(ValueError, match=message):
        estimator_of(tmp_path, **arguments)


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
    class Count(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        runs = ends = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.runs += 1

        def end(self, session: Any) -> None:
            self.ends += 1

    evaluated, predicted = Count(), Count()
    trained.evaluate(one_epoch, hooks=[evaluated])
    assert len(list(trained.predict(one_epoch, hooks=[predicted]))) == 4
    assert (evaluated.runs, predicted.runs) == (1, 1), "one batch each"
    assert (evaluated.ends, predicted.ends) == (1, 1)


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
