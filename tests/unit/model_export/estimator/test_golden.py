"""An estimator reads a checkpoint of TensorFlow 2.15's TPUEstimator, trains on, and writes all its variables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.frameworks import tf
from model_export.graphs.source import LookupPlan
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.optimization_parameters import AdagradParameters
from tests.unit.model_export.estimator.small_model import sparse
from tests.unit.model_export.late import late

with late():
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.estimator.checkpoints import WarmStartSettings
    from model_export.estimator.estimator import EmbeddingEstimator
    from model_export.estimator.estimator_spec import EstimatorSpec, ModeKeys
    from model_export.estimator.export_source import EstimatorSource
    from model_export.estimator.receivers import build_parsing_serving_input_receiver_fn
    from model_export.estimator.run_config import RunConfig

pytestmark = pytest.mark.tf

GOLDEN = Path(__file__).parents[4].parent / "shared" / "golden" / "tpu_estimator_2_15" / "tensor_core"
C_TABLE = "dense_features/c_embedding/embedding_weights"


@pytest.fixture
def golden() -> Path:
    """Returns the folder of files that TensorFlow 2.15 wrote."""
    if not GOLDEN.is_dir():
        pytest.skip("…/shared/golden is not here")
    return GOLDEN


@pytest.fixture
def expected(golden: Path) -> dict[str, Any]:
    """Returns the answers of TensorFlow 2.15, and the names and shapes of its checkpoint."""
    return dict(json.loads((golden / "expected.json").read_text()))


def golden_model(model_dir: Path, **arguments: Any) -> EmbeddingEstimator:
    v1 = tf.compat.v1
    core: dict[str, Any] = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [None, 4]}
    sizes = (("a", 10), ("b", 10), ("c", 20))
    a, b, c = (tf.feature_column.categorical_column_with_identity(name, size) for name, size in sizes)
    columns = [embedding_column(c, 4, combiner="sum", **core), *shared_embedding_columns([a, b], 4, **core)]

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        vectors = tf.keras.layers.DenseFeatures(columns)(features)
        kernel = v1.get_variable("logits/kernel", [12, 1])
        logits = tf.matmul(vectors, kernel) + v1.get_variable("logits/bias", [1], initializer=v1.zeros_initializer())
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, {"embedding": vectors, "score": tf.sigmoid(logits)})
        loss = v1.losses.sigmoid_cross_entropy(labels, logits)
        train_op = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    defaults = {"train_batch_size": 32, "eval_batch_size": 32, "config": RunConfig(tf_random_seed=1)}
    spec = EmbeddingConfigSpec(columns, AdagradParameters(0.1))
    return EmbeddingEstimator(model_fn, model_dir, **{**defaults, "embedding_config_spec": spec, **arguments})


def batch(params: dict[str, Any]) -> Any:
    """Returns random ids and labels, the same at every call, forever."""
    rng = np.random.default_rng(0)
    sizes = {"a": 10, "b": 10, "c": 20}
    size = params["batch_size"]
    features = {
        name: sparse([rng.integers(0, ids, rng.integers(1, 5)).tolist() for _ in range(size)])
        for name, ids in sizes.items()
    }
    return tf.data.Dataset.from_tensors((features, tf.constant(rng.integers(0, 2, (size, 1)), tf.float32))).repeat()


def rows_of(expected: dict[str, Any]) -> Callable[..., Any]:
    """Returns an input_fn that gives the golden rows as sparse tensors."""

    def input_fn(params: dict[str, Any]) -> Any:
        features = {name: sparse([row[name] for row in expected["rows"]]) for name in "abc"}
        return tf.data.Dataset.from_tensors(features)

    return input_fn


def values(estimator: EmbeddingEstimator) -> dict[str, np.ndarray]:
    """Returns all variables of the estimator's newest checkpoint, by name."""
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def test_a_checkpoint_of_ours_has_the_names_shapes_and_dtypes_that_2_15_reads(
    tmp_path: Path, golden: Path, expected: dict[str, Any]
) -> None:
    estimator = golden_model(tmp_path).train(batch, steps=2)
    ours = values(estimator)
    assert {name: list(value.shape) for name, value in ours.items()} == expected["checkpoint"]
    theirs = tf.train.load_checkpoint(str(golden / "model"))
    assert {name: value.dtype for name, value in ours.items()} == {
        name: dtype.as_numpy_dtype for name, dtype in theirs.get_variable_to_dtype_map().items()
    }
    assert ours["global_step"] == 2


def test_training_goes_on_from_2_15s_checkpoint(tmp_path: Path, golden: Path) -> None:
    model_dir = tmp_path / "model"
    shutil.copytree(golden / "model", model_dir)
    estimator = golden_model(model_dir)
    before = values(estimator)
    loss_before = estimator.evaluate(batch, steps=1)["loss"]
    estimator.train(batch, steps=10)
    after = values(estimator)
    assert before["global_step"] == 20 and after["global_step"] == 30
    assert estimator.evaluate(batch, steps=1)["loss"] < loss_before
    for slot in (name for name in before if name.endswith("/Adagrad")):
        assert (after[slot] >= before[slot]).all() and (after[slot] > before[slot]).any(), slot


def test_predictions_from_2_15s_checkpoint_are_2_15s(tmp_path: Path, golden: Path, expected: dict[str, Any]) -> None:
    estimator = golden_model(tmp_path)
    answers = list(estimator.predict(rows_of(expected), checkpoint_path=str(golden / "model" / "model.ckpt-20")))
    # This project's columns compute the lookup of a tensor core, which cuts row 2 after K ids, as the TPU graph of
    # TensorFlow 2.15 does.
    for name in ("embedding", "score"):
        lowered = expected["serve_tpu_lowered"][name]
        np.testing.assert_allclose([answer[name] for answer in answers], lowered, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("what", ["path", "settings"])
def test_warm_start_from_2_15s_checkpoint(tmp_path: Path, golden: Path, what: str) -> None:
    model = str(golden / "model")
    start = model if what == "path" else WarmStartSettings(model, vars_to_warm_start=[".*"])
    estimator = golden_model(tmp_path, warm_start_from=start, config=RunConfig(save_checkpoints_steps=1))
    theirs = tf.train.load_checkpoint(model)
    estimator.train(batch, steps=1)
    first = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-0" if what == "path" else tmp_path / "model.ckpt-20"))
    for name in ("a_b_shared_embedding", C_TABLE, "logits/kernel"):
        np.testing.assert_array_equal(first.get_tensor(name), theirs.get_tensor(name))
    # A path as the warm start sets trainable variables only, as in TensorFlow; settings with a list of expressions also
    # set slots and the step.
    is_same = np.array_equal(first.get_tensor(f"{C_TABLE}/Adagrad"), theirs.get_tensor(f"{C_TABLE}/Adagrad"))
    assert is_same == (what == "settings")


def test_an_export_of_2_15s_checkpoint_answers_as_2_15s_export(
    tmp_path: Path, golden: Path, expected: dict[str, Any]
) -> None:
    estimator = golden_model(tmp_path / "model")
    receiver = build_parsing_serving_input_receiver_fn({name: tf.io.VarLenFeature(tf.int64) for name in "abc"})
    checkpoint = str(golden / "model" / "model.ckpt-20")
    source = EstimatorSource(estimator, receiver, checkpoint_path=checkpoint)
    parts = source.save(tmp_path / "saved", LookupPlan({}, {}), source.predict_names)
    assert parts.table_variables == {"c": C_TABLE, "a_b_shared_embedding": "a_b_shared_embedding"}

    def feature(ids: list[int]) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=ids))

    examples = [
        tf.train.Example(features=tf.train.Features(feature={k: feature(ids) for k, ids in row.items()}))
        for row in expected["rows"]
    ]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "saved"))
        definition = loaded.signature_def["serving_default"]
        feed = {definition.inputs["examples"].name: [example.SerializeToString() for example in examples]}
        answers = session.run({name: info.name for name, info in definition.outputs.items()}, feed)
    for name in ("embedding", "score"):
        np.testing.assert_allclose(answers[name], expected["serve"][name], rtol=1e-6, atol=1e-6)
