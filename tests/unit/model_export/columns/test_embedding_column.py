"""Both column functions agree with TensorFlow's and numpy, for every kind, combiner and device; and they train."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.model_export.columns.column_cases import (
    SAFE_ROWS,
    TABLE,
    UNSAFE_ROWS,
    K,
    expected,
    kinds,
    sparse,
    table_initializer,
    weights_of,
)

pytestmark = pytest.mark.tf

KINDS = ["identity", "weighted", "vocabulary_file", "vocabulary_list", "vocabulary_list_of_int"]
COMBINERS = ["sum", "mean", "sqrtn"]
CPU_DEVICES = [None, "cpu", "tpu_embedding_core"]
Case = tuple[str, str, bool, str | None, bool]

CPU_CASES: list[Case] = list(itertools.product(KINDS, COMBINERS, [True, False], CPU_DEVICES, [False, True]))
PADDED_CASES: list[Case] = list(
    itertools.product(KINDS, ["sum", "mean"], [True, False], ["tpu_tensor_core"], [False, True])
)
Results = Mapping[Case, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]


def made(api: Any, is_shared: bool, column: Any, **arguments: Any) -> Any:
    """Returns one column, made by embedding_column or shared_embedding_columns of either library."""
    return (
        api.shared_embedding_columns([column], **arguments)[0]
        if is_shared
        else api.embedding_column(column, **arguments)
    )


@pytest.fixture(scope="module")
def looked_up(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Returns each case -> vectors and gradient, computed eagerly; device "tensorflow" is TensorFlow's own column."""
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    by_kind = kinds(tmp_path_factory.mktemp("vocabulary"))
    batches = {
        safe: {key: value for kind in by_kind.values() for key, value in kind.features(rows).items()}
        for safe, rows in ((True, SAFE_ROWS), (False, UNSAFE_ROWS))
    }
    results: dict[Case, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}

    def add(case: tuple[str, bool, str | None, bool], api: Any, **device: Any) -> None:
        # Adds a result for each kind of column, from one layer that has columns of all kinds.
        combiner, safe, _, is_shared = case
        arguments = {
            "dimension": 3,
            "combiner": combiner,
            "initializer": table_initializer,
            "use_safe_embedding_lookup": safe,
            **device,
        }
        columns = {kind: made(api, is_shared, value.column, **arguments) for kind, value in by_kind.items()}
        vectors: dict[Any, Any] = {}
        pull = tf.reshape(tf.range(1.0, len(SAFE_ROWS if safe else UNSAFE_ROWS) + 1) / 10, [-1, 1])
        with tf.GradientTape() as tape:
            layer = tf.keras.layers.DenseFeatures(list(columns.values()))
            layer(batches[safe], cols_to_output_tensors=vectors)
            pulled = [vector * pull for vector in vectors.values()]
        # A layer reads its columns in the order of their names, so the tape lists their tables, and `vectors` its
        # columns, in the same order.
        gradients = dict(zip(vectors, tape.gradient(pulled, tape.watched_variables()), strict=True))
        for kind, column in columns.items():
            gradient = tf.convert_to_tensor(gradients[column])
            results[kind, *case] = (vectors[column].numpy(), gradient.numpy())

    for combiner, safe, is_shared in itertools.product(COMBINERS, [True, False], [False, True]):
        add((combiner, safe, "tensorflow", is_shared), tf.compat.v1.tpu.experimental)
        for device in CPU_DEVICES:
            add((combiner, safe, device, is_shared), ours, embedding_lookup_device=device)
        if combiner != "sqrtn":
            padded = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [None, K]}
            add((combiner, safe, "tpu_tensor_core", is_shared), ours, **padded)
    return results


def case_name(case: Case) -> str:
    """Returns a readable id for a test's case."""
    kind, combiner, safe, device, is_shared = case
    return f"{kind}-{combiner}-{'safe' if safe else 'unsafe'}-{device}-{'shared' if is_shared else 'single'}"


def rows_and_weights(kind: str, safe: bool) -> tuple[list[list[int]], list[list[float]] | None]:
    """Returns the rows of a case, without ids below 0 if it is unsafe, and the weights if the kind has them."""
    rows = SAFE_ROWS if safe else UNSAFE_ROWS
    return rows, weights_of(rows) if kind == "weighted" else None


@pytest.mark.parametrize("case", CPU_CASES, ids=case_name)
def test_a_cpu_lookup_is_tensorflows_own(case: Case, looked_up: Results) -> None:
    kind, combiner, safe, _, is_shared = case
    vectors, gradient = looked_up[case]
    their_vectors, their_gradient = looked_up[kind, combiner, safe, "tensorflow", is_shared]
    np.testing.assert_array_equal(vectors, their_vectors)
    np.testing.assert_array_equal(gradient, their_gradient)
    rows, weights = rows_and_weights(kind, safe)
    wanted = expected(rows, combiner, weights=weights, is_safe=safe)
    np.testing.assert_allclose(vectors, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", PADDED_CASES, ids=case_name)
def test_a_padded_lookup_is_computed_outside_a_tpu(case: Case, looked_up: Results) -> None:
    kind, combiner, safe, _, _ = case
    vectors, gradient = looked_up[case]
    rows, weights = rows_and_weights(kind, safe)
    np.testing.assert_allclose(
        vectors, expected(rows, combiner, weights=weights, is_safe=safe, width=K), rtol=1e-5, atol=1e-6
    )
    # The gradient of sum(c_r x_r) by each number of table row i equals sum(c_r y_r[i]), where y_r is the oracle's
    # vector for a table of one-hot rows.
    one_hot = expected(rows, combiner, weights=weights, is_safe=safe, width=K, table=np.eye(len(TABLE)))
    pull = np.arange(1, len(rows) + 1) / 10
    np.testing.assert_allclose(gradient, np.outer(pull @ one_hot, np.ones(3)), rtol=1e-5, atol=1e-6)


def test_cpu_and_padded_differ_where_a_row_is_cut(looked_up: Results) -> None:
    on_cpu = looked_up["identity", "mean", True, "cpu", False][0]
    padded = looked_up["identity", "mean", True, "tpu_tensor_core", False][0]
    differing = np.flatnonzero(np.abs(on_cpu - padded).max(axis=1) > 1e-5)
    assert differing.tolist() == [r for r, row in enumerate(SAFE_ROWS) if len(row) > K] == [4]


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(
    ("rows", "safe", "device"),
    [
        ([[6]], True, None),
        ([[0, 6]], True, "cpu"),
        ([[6]], True, "tpu_tensor_core"),
        ([[6]], False, None),
        ([[-1]], False, None),
        ([[-1]], False, "tpu_tensor_core"),
    ],
)
def test_a_row_that_no_table_has_is_an_error(
    rows: list[list[int]], safe: bool, device: str | None, is_shared: bool
) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    column = tf.feature_column.categorical_column_with_identity("i", 6)
    arguments: dict[str, Any] = {"dimension": 3, "initializer": table_initializer, "use_safe_embedding_lookup": safe}
    mine = made(ours, is_shared, column, **arguments, embedding_lookup_device=device, tensor_core_shape=[None, 4])
    theirs = made(tf.compat.v1.tpu.experimental, is_shared, column, **arguments)
    for made_column in (mine, theirs):
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.keras.layers.DenseFeatures([made_column])({"i": sparse(rows, tf.int64)})


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_identitys_default_value_goes_before_the_padding(is_shared: bool) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    column = tf.feature_column.categorical_column_with_identity("i", 6, default_value=2)
    rows, mapped = [[-1, 5], [6, 7, 1], [2**32 + 1]], [[2, 5], [2, 2, 1], [2]]
    for device in ("cpu", "tpu_tensor_core"):
        arguments = {"embedding_lookup_device": device, "tensor_core_shape": [None, 4]}
        mine = made(ours, is_shared, column, dimension=3, initializer=table_initializer, **arguments)
        vectors = tf.keras.layers.DenseFeatures([mine])({"i": sparse(rows, tf.int64)})
        np.testing.assert_allclose(vectors, expected(mapped, "mean"), rtol=1e-5)


def test_unknown_words_reach_their_bucket_before_the_padding(tmp_path: Path) -> None:
    from model_export.columns.embedding_column import embedding_column
    from model_export.tensorflow_setup import tf

    words = tmp_path / "words.txt"
    words.write_text("a\nb\nc\n")
    fc = tf.feature_column
    rows = [["a", "x", "zz"], ["hello"], ["c"]]
    bucket = lambda word: 3 + int(tf.strings.to_hash_bucket_fast(word, 3))  # noqa: E731
    mapped = [["abc".index(word) if word in "abc" else bucket(word) for word in row] for row in rows]
    for column in (
        fc.categorical_column_with_vocabulary_file("w", str(words), num_oov_buckets=3),
        fc.categorical_column_with_vocabulary_list("w", ["a", "b", "c"], num_oov_buckets=3),
    ):
        mine = embedding_column(
            column,
            3,
            initializer=table_initializer,
            embedding_lookup_device="tpu_tensor_core",
            tensor_core_shape=[-1, 4],
        )
        vectors = tf.keras.layers.DenseFeatures([mine])({"w": sparse(rows, tf.string)})
        np.testing.assert_allclose(vectors, expected(mapped, "mean", width=4), rtol=1e-5)


def test_an_unsafe_lookup_gives_every_row_also_empty_ones_at_the_end() -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    column = tf.feature_column.categorical_column_with_identity("i", 6)
    rows: list[list[int]] = [[1, 2], [], [3], [], []]
    arguments = {"dimension": 3, "initializer": table_initializer, "use_safe_embedding_lookup": False}
    features = {"i": sparse(rows, tf.int64)}
    for is_shared in (False, True):
        vectors = tf.keras.layers.DenseFeatures([made(ours, is_shared, column, **arguments)])(features)
        np.testing.assert_allclose(vectors, expected(rows, "mean"), rtol=1e-5)
    theirs = tf.compat.v1.tpu.experimental.embedding_column(column, **arguments)
    assert tf.keras.layers.DenseFeatures([theirs])(features).shape == [3, 3], "what ours is there for"


def test_the_default_initializer_is_a_truncated_normal_of_one_over_the_root_of_the_dimension() -> None:
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.tensorflow_setup import tf

    column = tf.feature_column.categorical_column_with_identity("i", 20_000)
    for made_column in (embedding_column(column, 16), *shared_embedding_columns([column], 16)):
        initializer = made_column.get_initializer()
        assert (initializer.mean, initializer.stddev) == (0.0, 0.25)
        numbers = initializer([20_000, 16], tf.float32).numpy()
        assert np.abs(numbers).max() <= 0.5, "cut at two standard deviations"
        # A normal distribution cut at two standard deviations has 0.8796 of its standard deviation.
        assert numbers.std() == pytest.approx(0.25 * 0.8796, rel=0.01) and abs(numbers.mean()) < 0.005


def test_a_training_step_moves_the_tables_as_tensorflows_does(tmp_path: Path) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    v1 = tf.compat.v1

    def trained(api: Any, **device: Any) -> tuple[dict[str, Any], float]:
        with tf.Graph().as_default():
            by_kind = kinds(tmp_path)
            features = {key: value for kind in by_kind.values() for key, value in kind.features(SAFE_ROWS).items()}
            made_columns = [
                api.embedding_column(kind.column, 3, "mean", table_initializer, **device)
                for name, kind in by_kind.items()
                if name != "identity"
            ] + api.shared_embedding_columns([by_kind["identity"].column], 3, "sum", table_initializer, **device)
            vectors = v1.keras.layers.DenseFeatures(made_columns)(features)
            loss = tf.reduce_mean(tf.square(vectors - 1.0))
            step = v1.train.AdagradOptimizer(0.5).minimize(loss)
            with v1.Session() as session:
                session.run([v1.global_variables_initializer(), v1.tables_initializer()])
                for _ in range(3):
                    session.run(step)
                return session.run({v.op.name: v for v in v1.global_variables()}), session.run(loss)

    theirs, their_loss = trained(tf.compat.v1.tpu.experimental)
    for device in CPU_DEVICES:
        tables, loss = trained(ours, embedding_lookup_device=device)
        assert tables.keys() == theirs.keys()
        for name in theirs:
            np.testing.assert_allclose(tables[name], theirs[name], rtol=1e-6, atol=1e-7)
            assert np.abs(tables[name] - TABLE).max() > 0.05, "it has moved"
        assert loss == pytest.approx(their_loss)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_columns_work_in_a_function_and_keep_their_variables(version: str) -> None:
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    columns = [
        embedding_column(
            fc.categorical_column_with_identity("c", 6),
            3,
            initializer=table_initializer,
            embedding_lookup_device="tpu_tensor_core",
            tensor_core_shape=[None, K],
        ),
        *shared_embedding_columns(
            [fc.categorical_column_with_identity(key, 6) for key in ("b", "a")], 3, initializer=table_initializer
        ),
    ]
    layers = tf.keras.layers if version == "v2" else tf.compat.v1.keras.layers
    layer = layers.DenseFeatures(columns, name="dense_features")

    @tf.function(input_signature=[{key: tf.SparseTensorSpec([None, None], tf.int64) for key in "abc"}])
    def vectors(features: Any) -> Any:
        return layer(features)

    for rows in (SAFE_ROWS, [[1], [2, 3]]):
        result = vectors({key: sparse(rows, tf.int64) for key in "abc"}).numpy()
        # DenseFeatures sorts its columns by name: a, b, c.
        wanted = [expected(rows, "mean"), expected(rows, "mean"), expected(rows, "mean", width=K)]
        np.testing.assert_allclose(result, np.concatenate(wanted, axis=1), rtol=1e-5, atol=1e-6)
    names = {variable.name for variable in vectors.get_concrete_function().graph.variables}
    assert names == {"dense_features/c_embedding/embedding_weights:0", "a_b_shared_embedding:0"}


def test_input_layer_of_2019_looks_up_too() -> None:
    from model_export.columns.embedding_column import embedding_column
    from model_export.tensorflow_setup import tf

    v1 = tf.compat.v1
    column = tf.feature_column.categorical_column_with_identity("i", 6)
    with tf.Graph().as_default():
        fetches = {
            device: v1.feature_column.input_layer(
                {"i": sparse(SAFE_ROWS, tf.int64)},
                [
                    embedding_column(
                        column,
                        3,
                        initializer=table_initializer,
                        embedding_lookup_device=device,
                        tensor_core_shape=[None, K],
                    )
                ],
            )
            for device in ("cpu", "tpu_tensor_core")
        }
        names = [variable.op.name for variable in v1.global_variables()]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            vectors = session.run(fetches)
    assert names[0] == "input_layer/i_embedding/embedding_weights"
    np.testing.assert_allclose(vectors["cpu"], expected(SAFE_ROWS, "mean"), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(vectors["tpu_tensor_core"], expected(SAFE_ROWS, "mean", width=K), rtol=1e-5, atol=1e-6)


def test_the_golden_checkpoints_names_and_shapes_are_ours() -> None:
    from model_export.columns.embedding_column import embedding_column, shared_embedding_columns
    from model_export.tensorflow_setup import tf

    golden = Path(__file__).resolve().parents[5] / "shared" / "golden" / "tpu_estimator_2_15" / "tensor_core" / "model"
    if not golden.is_dir():
        pytest.skip("no ../shared/golden: the checkpoint of TensorFlow 2.15 is not part of this repository")
    saved = dict(tf.train.list_variables(tf.train.latest_checkpoint(str(golden))))
    fc, v1 = tf.feature_column, tf.compat.v1
    a, b, c = (fc.categorical_column_with_identity(*key) for key in (("a", 10), ("b", 10), ("c", 20)))
    padded = {"embedding_lookup_device": "tpu_tensor_core", "tensor_core_shape": [None, 4]}
    with tf.Graph().as_default():
        columns = [embedding_column(c, 4, "sum", **padded), *shared_embedding_columns([a, b], 4, **padded)]
        v1.keras.layers.DenseFeatures(columns)({key: sparse([[1]], tf.int64) for key in "abc"})
        tables = {variable.op.name: variable for variable in v1.global_variables()}
        assert len(tables) == 2
        assert {name: saved[name] for name in tables} == {name: table.shape for name, table in tables.items()}
        with v1.Session() as session:
            v1.train.Saver(tables).restore(session, tf.train.latest_checkpoint(str(golden)))
            reader = tf.train.load_checkpoint(str(golden))
            for name, table in session.run(tables).items():
                np.testing.assert_array_equal(table, reader.get_tensor(name))
