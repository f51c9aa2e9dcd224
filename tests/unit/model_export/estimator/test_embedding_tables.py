"""Tables of an estimator: their variables, parts, lookups, and optimizers across shards."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.frameworks import tf
from model_export.spec.embedding_config_spec import EmbeddingConfigSpec
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec
from model_export.spec.optimization_parameters import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    StochasticGradientDescentParameters,
)
from model_export.spec.table_config import FeatureConfig, TableConfig
from service.artifact.bundle import read_bundle
from service.artifact.manifest import MANIFEST_PATH
from tests.unit.model_export.estimator.small_model import (
    LABELS,
    ROWS,
    TABLE,
    TABLE_NAME,
    column,
    estimator_of,
    input_fn,
    model_fn_of,
    sparse,
)
from tests.unit.model_export.late import Late, late

with late():
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.estimator import sessions
    from model_export.estimator.embedding_tables import TableRecorder, ids_and_splits, looked_up_ids, lookup_spec
    from model_export.estimator.estimator import EmbeddingEstimator
    from model_export.estimator.estimator_spec import EstimatorSpec, ModeKeys
    from model_export.estimator.model_graph import unwrapped
    from model_export.estimator.run_config import RunConfig, TPUConfig
    from model_export.estimator.training_processes import OneProcess

pytestmark = pytest.mark.tf


def identity(key: str, size: int) -> Any:
    return tf.feature_column.categorical_column_with_identity(key, size)


def columns() -> list[Any]:
    """Returns columns of a weighted table of its own, of a shared table, and one without a table."""
    weighted = tf.feature_column.weighted_categorical_column(identity("user/id", 5), "w")
    shared = shared_embedding_columns([identity("a", 7), identity("b", 7)], 2, shared_embedding_collection_name="films")
    return [embedding_column(weighted, 3), *shared, tf.feature_column.numeric_column("age")]


def features() -> dict[str, Any]:
    """Returns one row."""
    weights = tf.sparse.from_dense([[1.0]])
    ids = sparse([[1]])
    return {"user/id": ids, "w": weights, "a": ids, "b": ids, "age": tf.constant([[3.0]])}


def trainable() -> set[str]:
    return {variable.op.name for variable in tf.compat.v1.trainable_variables()}


def test_tables_are_found_by_name_and_not_trainable_while_model_fn_runs() -> None:
    spec = EmbeddingConfigSpec(columns(), AdagradParameters(0.1))
    with tf.Graph().as_default():
        recorder = TableRecorder(spec, keeps_from_optimizer=True)
        with recorder.recording(), tf.name_scope("tower"):
            tf.keras.layers.DenseFeatures(spec.feature_columns)(features())
            tf.compat.v1.get_variable("other", [1])
            assert trainable() == {"other", "embedding_tables_anchor"}
        tables = {name: variable.op.name for name, variable in recorder.variables().items()}
        assert set(tables) == {"user_id_weighted_by_w", "films"}
        assert tables["films"] == "films"
        assert tables["user_id_weighted_by_w"].endswith("/user/id_weighted_by_w_embedding/embedding_weights")
        assert trainable() == {"other", *tables.values()}


def test_outside_training_tables_stay_as_they_are() -> None:
    spec = EmbeddingConfigSpec(columns(), AdagradParameters(0.1))
    with tf.Graph().as_default():
        recorder = TableRecorder(spec, keeps_from_optimizer=False)
        with recorder.recording():
            tf.keras.layers.DenseFeatures(spec.feature_columns)(features())
            assert trainable() == {variable.op.name for variable in recorder.variables().values()}


def test_a_column_that_is_not_used_or_used_twice_is_named() -> None:
    spec = EmbeddingConfigSpec(columns(), AdagradParameters(0.1))
    with tf.Graph().as_default():
        recorder = TableRecorder(spec, keeps_from_optimizer=True)
        with recorder.recording():
            tf.keras.layers.DenseFeatures(spec.feature_columns[1:])(features())
        with pytest.raises(ValueError, match=r"did not create: \['user_id_weighted_by_w'\]"):
            recorder.variables()
    with tf.Graph().as_default():
        recorder = TableRecorder(spec, keeps_from_optimizer=True)
        with recorder.recording():
            tf.keras.layers.DenseFeatures(spec.feature_columns)(features())
            tf.keras.layers.DenseFeatures(spec.feature_columns, name="again")(features())
        with pytest.raises(ValueError, match="created the table 'user_id_weighted_by_w' more than once"):
            recorder.variables()


def test_a_model_of_nothing_but_tables_trains_and_its_checkpoint_has_no_more_than_them(tmp_path: Path) -> None:
    a, b = (embedding_column(identity(key, 4), 2) for key in "ab")

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
        users, films = (tf.keras.layers.DenseFeatures([column], name=column.name)(features) for column in (a, b))
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(users * films, axis=1) - labels))
        train_op = None
        if mode == ModeKeys.TRAIN:
            v1 = tf.compat.v1
            train_op = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params: dict[str, Any]) -> Any:
        ids = sparse([[0], [1], [2]])
        return tf.data.Dataset.from_tensors(({"a": ids, "b": ids}, tf.constant([1.0, -1.0, 0.5]))).repeat()

    spec = EmbeddingConfigSpec([a, b], AdagradParameters(0.5))
    config = RunConfig(tf_random_seed=2)
    estimator = EmbeddingEstimator(model_fn, tmp_path, config, train_batch_size=3, embedding_config_spec=spec)
    before = estimator.evaluate(input_fn, steps=1)["loss"]
    estimator.train(input_fn, steps=30)
    assert estimator.evaluate(input_fn, steps=1)["loss"] < before / 10
    tables = ["a_embedding/a_embedding/embedding_weights", "b_embedding/b_embedding/embedding_weights"]
    assert estimator.get_variable_names() == sorted([*tables, *(f"{table}/Adagrad" for table in tables), "global_step"])
    assert np.isfinite(estimator.get_variable_value(tables[0])).all()


@cache
def in_parts() -> type[OneProcess]:
    """Returns a class that trains in one process with each table in three parts, as if other processes shared them."""
    return type("InParts", (OneProcess.found(),), {"parts": 3, "shares_variables": True})


def trained(estimator: EmbeddingEstimator, processes: type[OneProcess]) -> EmbeddingEstimator:
    """Trains an estimator's model for three steps in a simulated process; returns the estimator."""
    sessions.train(
        estimator.model,
        input_fn,
        model_dir=estimator.model_dir,
        hooks=[tf.compat.v1.train.StopAtStepHook(3)],
        saving_listeners=[],
        warm_start_settings=None,
        processes=processes(estimator.config),
    )
    return estimator


@pytest.mark.parametrize(
    "parameters",
    [
        AdagradParameters(0.5),
        AdagradParameters(0.5, use_gradient_accumulation=False),
        AdamParameters(0.1),
        AdamParameters(0.1, lazy_adam=False),
        FtrlParameters(0.1),
        MomentumParameters(0.1, momentum=0.9),
        StochasticGradientDescentParameters(0.5),
    ],
    ids=str,
)
def test_parts_train_as_the_whole_table(tmp_path: Path, parameters: Any) -> None:
    spec = EmbeddingConfigSpec([column()], parameters)
    whole = trained(estimator_of(tmp_path / "whole", spec), OneProcess)
    parts = trained(estimator_of(tmp_path / "parts", spec), in_parts())
    assert parts.get_variable_names() == whole.get_variable_names()
    for name in whole.get_variable_names():
        np.testing.assert_allclose(parts.get_variable_value(name), whole.get_variable_value(name), 2e-6, 1e-7, name)
    stored = read_bundle(Path(parts.latest_checkpoint() or ""))[TABLE_NAME]
    assert [(part.start, part.entry.shape) for part in stored.slices] == [
        ((0, 0), (2, 2)),
        ((2, 0), (2, 2)),
        ((4, 0), (1, 2)),
    ]


def test_a_whole_table_goes_on_from_the_checkpoint_of_parts_and_back(tmp_path: Path) -> None:
    estimator = trained(estimator_of(tmp_path), in_parts())
    estimator.train(input_fn, steps=1)
    assert not read_bundle(Path(estimator.latest_checkpoint() or ""))[TABLE_NAME].is_sliced
    whole = estimator.get_variable_value(TABLE_NAME)
    trained(estimator, in_parts())
    assert not np.array_equal(estimator.get_variable_value(TABLE_NAME), whole)
    assert [row["answer"].shape for row in estimator.predict(lambda params: input_fn(params).take(1))] == [(1,)] * 4


def test_configured_tables_are_split_too(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        from model_export.estimator.estimator_spec import EstimatorSpec

        v1 = tf.compat.v1
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(features["c"], axis=1, keepdims=True) - LABELS))
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=step)

    def configured(folder: Path, processes: type[OneProcess]) -> EmbeddingEstimator:
        start = tf.compat.v1.constant_initializer(TABLE)
        spec = EmbeddingConfigSpec(
            table_to_config_dict={"t": TableConfig(len(TABLE), 2, initializer=start, combiner="sum")},
            feature_to_config_dict={"c": FeatureConfig("t")},
            optimization_parameters=AdagradParameters(0.5),
        )
        return trained(estimator_of(folder, spec, model_fn=model_fn), processes)

    whole, parts = configured(tmp_path / "whole", OneProcess), configured(tmp_path / "parts", in_parts())
    for name in ("t", "t/Adagrad"):
        np.testing.assert_allclose(parts.get_variable_value(name), whole.get_variable_value(name), 2e-6, 1e-7)
    assert sparse(ROWS).shape[0] == len(LABELS)


@pytest.mark.parametrize("seed", [None, 5])
def test_each_part_draws_rows_of_its_own(seed: int | None, tmp_path: Path) -> None:
    start = tf.compat.v1.truncated_normal_initializer(stddev=0.5, seed=seed)
    spec = EmbeddingConfigSpec([column(initializer=start)], StochasticGradientDescentParameters(0.0))
    table = trained(estimator_of(tmp_path, spec), in_parts()).get_variable_value(TABLE_NAME)
    assert len(np.unique(table)) == table.size


ROOT = Path(__file__).parents[4]
WRAPPER = Late("tensorflow", "compat.v1.tpu.CrossShardOptimizer")
# tf.compat.v1.losses.Reduction.SUM
SUM = "weighted_sum"


def momentum() -> Any:
    """Returns a momentum optimizer: its slot is saved too, so that tests can compare it."""
    return tf.compat.v1.train.MomentumOptimizer(0.05, 0.9)


def wrapped(**arguments: Any) -> Any:
    """Returns the momentum optimizer in a CrossShardOptimizer."""
    return WRAPPER(momentum(), **arguments)


class GroupByHand:
    """Calls compute_gradients and apply_gradients itself, as scripts that clip gradients do."""

    def minimize(self, loss: Any, step: Any) -> Any:
        optimizer = wrapped()
        pairs = [(gradient, variable) for gradient, variable in optimizer.compute_gradients(loss)]
        return optimizer.apply_gradients(pairs, global_step=step, name="train")


class InsideCond:
    """Applies gradients inside tf.cond, whose branches are separate graphs, as scripts that accumulate gradients do."""

    def minimize(self, loss: Any, step: Any) -> Any:
        optimizer = wrapped()
        pairs = optimizer.compute_gradients(loss)
        return tf.cond(step >= 0, lambda: tf.group(optimizer.apply_gradients(pairs, step)), tf.no_op)


def values_after(folder: Path, optimizer: Callable[[], Any], **arguments: Any) -> dict[str, Any]:
    """Returns every variable of the small model after three steps."""
    arguments.setdefault("model_fn", model_fn_of([column()], optimizer))
    estimator = estimator_of(folder, **arguments).train(input_fn, steps=3)
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


@pytest.mark.parametrize(
    "optimizer",
    [wrapped, lambda: wrapped(reduction=SUM), lambda: wrapped(group_assignment=[[0]]), GroupByHand, InsideCond],
    ids=["mean", "sum", "one group", "gradients by hand", "inside cond"],
)
@pytest.mark.parametrize("has_tables", [True, False])
def test_it_trains_as_the_optimizer_inside(tmp_path: Path, optimizer: Callable[[], Any], has_tables: bool) -> None:
    # Without an EmbeddingConfigSpec, this optimizer trains the tables too, so it gets their sparse gradients.
    arguments = {} if has_tables else {"embedding_config_spec": None}
    plain = values_after(tmp_path / "plain", momentum, **arguments)
    through = values_after(tmp_path / "wrapped", optimizer, **arguments)
    assert "weight/Momentum" in plain and set(through) == set(plain)
    for name, value in plain.items():
        np.testing.assert_allclose(through[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_the_log_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        values_after(tmp_path, wrapped)
    said = [record.getMessage() for record in caplog.records if "CrossShardOptimizer" in record.getMessage()]
    assert said == ["CrossShardOptimizer is not needed here: the estimator trains with the MomentumOptimizer inside it"]


@pytest.mark.parametrize(
    ("arguments", "num_shards", "text"),
    [
        (
            {"group_assignment": [[0, 1], [2, 3]]},
            None,
            (
                "CrossShardOptimizer has group_assignment=[[0, 1], [2, 3]], but this estimator trains one replica: "
                "leave group_assignment out"
            ),
        ),
        (
            {"reduction": SUM},
            8,
            (
                "CrossShardOptimizer has reduction=SUM, which adds up the gradients of TPUConfig's num_shards=8 "
                "shards, but this estimator computes one gradient, of the whole batch. Leave reduction out if the "
                "loss is the mean of the batch; set num_shards=1 if the loss is the sum of the batch"
            ),
        ),
        # TensorFlow's own text.
        ({"reduction": "none"}, None, "Argument `reduction` should be one of"),
    ],
)
def test_what_one_replica_can_not_honour_is_refused(
    tmp_path: Path, arguments: dict[str, Any], num_shards: int | None, text: str
) -> None:
    config = RunConfig(tpu_config=TPUConfig(num_shards=num_shards))
    with pytest.raises(ValueError, match=re.escape(text)):
        values_after(tmp_path, lambda: wrapped(**arguments), config=config)


def test_the_mean_of_shards_is_the_gradient_of_the_batch(tmp_path: Path) -> None:
    config = RunConfig(tpu_config=TPUConfig(num_shards=8))
    assert values_after(tmp_path, wrapped, config=config)["global_step"] == 3


def test_tensorflows_class_is_as_before_outside_and_in_other_threads() -> None:

    def operations(found: list[str]) -> None:
        with tf.Graph().as_default() as graph:
            variable = tf.compat.v1.get_variable("x", [2])
            wrapped().minimize(tf.reduce_sum(variable * variable))
            found += [operation.type for operation in graph.get_operations()]

    inside: list[str] = []
    elsewhere: list[str] = []
    with unwrapped(None):
        operations(inside)
        with unwrapped(None):
            pass
        thread = threading.Thread(target=operations, args=[elsewhere])
        thread.start()
        thread.join()
        operations(inside)
    assert "CrossReplicaSum" not in inside
    with pytest.raises(RuntimeError, match="^model_fn failed$"), unwrapped(None):
        raise RuntimeError("model_fn failed")
    outside: list[str] = []
    operations(outside)
    assert "CrossReplicaSum" in elsewhere and "CrossReplicaSum" in outside


def test_the_script_in_the_documents_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs/migration.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "CrossShardOptimizer" in script
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    (version,) = (tmp_path / "models/ratings").iterdir()
    assert (version / "saved_model.pb").is_file() and (version / MANIFEST_PATH).is_file()
    assert "CrossShardOptimizer is not needed here" in done.stderr
    assert "Traceback" not in done.stderr


BY_DICTS = EmbeddingConfigSpec(
    optimization_parameters=AdagradParameters(0.1),
    feature_to_config_dict={
        "one": FeatureConfig("single"),
        "some": FeatureConfig("film/table"),
        "seen": FeatureConfig("film/table", max_sequence_length=3),
    },
    table_to_config_dict={"single": TableConfig(4, 2, combiner=None), "film/table": TableConfig(9, 4)},
)


def test_dicts_become_a_model_spec() -> None:
    assert lookup_spec(BY_DICTS, max_ids_per_row=8) == ModelSpec(
        (TableSpec("single", 4, 2, "mean", 1 / np.sqrt(2)), TableSpec("film_table", 9, 4, "mean", 0.5)),
        (
            FeatureSpec("one", "single"),
            FeatureSpec(
                "some",
                "film_table",
                is_ragged=True,
                max_ids_per_row=8,
                combiner="mean",
                on_bad_id="drop_negative",
                on_nonpositive_weight="drop",
            ),
            FeatureSpec("seen", "film_table", is_ragged=True, max_sequence_length=3),
        ),
    )


def test_columns_become_a_model_spec_without_the_numeric_ones() -> None:
    spec = EmbeddingConfigSpec([column(), tf.feature_column.numeric_column("age")], AdagradParameters(0.1))
    assert [feature.name for feature in lookup_spec(spec).features] == ["c"]
    assert lookup_spec(spec).tables[0].vocabulary_size == 5


def fetched(spec: EmbeddingConfigSpec, features: Any) -> dict[str, Any]:
    """Returns the ids and row splits that a batch looks up, by feature."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ids = looked_up_ids(spec, features())
        session.run(tf.compat.v1.tables_initializer())
        return {name: ids_and_splits(value) for name, value in session.run(ids).items()}


def test_rows_that_a_batch_reads() -> None:
    words = tf.feature_column.categorical_column_with_vocabulary_list("word", ["x", "y"])
    spec = EmbeddingConfigSpec([column(), embedding_column(words, 2)], AdagradParameters(0.1))
    got = fetched(spec, lambda: {"c": sparse(ROWS), "word": tf.constant([["y"], ["z"], ["x"], ["y"]])})
    assert got["c"][0].tolist() == [id for row in ROWS for id in row]
    assert got["c"][1].tolist() == [0, 2, 3, 6, 6]
    assert got["word"][0].tolist() == [1, -1, 0, 1]

    dicts = fetched(
        BY_DICTS, lambda: {"one": tf.constant([3, 0]), "some": sparse([[8], []]), "seen": sparse([[], [1, 2]])}
    )
    assert dicts["one"][0].tolist() == [3, 0] and dicts["one"][1] is None
    assert (dicts["some"][0].tolist(), dicts["some"][1].tolist()) == ([8], [0, 1, 1])
    assert (dicts["seen"][0].tolist(), dicts["seen"][1].tolist()) == ([1, 2], [0, 0, 2])
