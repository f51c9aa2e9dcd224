"""Both column functions look up and train as TensorFlow's and numpy do, for every kind, combiner and device."""

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
    WORDS,
    K,
    expected,
    kinds,
    sparse,
    table_initializer,
    tpu_context,
    weights_of,
)
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

ours = Late("model_export.columns.embedding_column")
embedding_column = Late("model_export.columns.embedding_column", "embedding_column")
shared_embedding_columns = Late("model_export.columns.embedding_column", "shared_embedding_columns")

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
    column = tf.feature_column.categorical_column_with_identity("i", 6)
    arguments: dict[str, Any] = {"dimension": 3, "initializer": table_initializer, "use_safe_embedding_lookup": safe}
    mine = made(ours, is_shared, column, **arguments, embedding_lookup_device=device, tensor_core_shape=[None, 4])
    theirs = made(tf.compat.v1.tpu.experimental, is_shared, column, **arguments)
    for made_column in (mine, theirs):
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.keras.layers.DenseFeatures([made_column])({"i": sparse(rows, tf.int64)})


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_identitys_default_value_goes_before_the_padding(is_shared: bool) -> None:
    column = tf.feature_column.categorical_column_with_identity("i", 6, default_value=2)
    rows, mapped = [[-1, 5], [6, 7, 1], [2**32 + 1]], [[2, 5], [2, 2, 1], [2]]
    for device in ("cpu", "tpu_tensor_core"):
        arguments = {"embedding_lookup_device": device, "tensor_core_shape": [None, 4]}
        mine = made(ours, is_shared, column, dimension=3, initializer=table_initializer, **arguments)
        vectors = tf.keras.layers.DenseFeatures([mine])({"i": sparse(rows, tf.int64)})
        np.testing.assert_allclose(vectors, expected(mapped, "mean"), rtol=1e-5)


def test_unknown_words_reach_their_bucket_before_the_padding(tmp_path: Path) -> None:
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
    column = tf.feature_column.categorical_column_with_identity("i", 20_000)
    for made_column in (embedding_column(column, 16), *shared_embedding_columns([column], 16)):
        initializer = made_column.get_initializer()
        assert (initializer.mean, initializer.stddev) == (0.0, 0.25)
        numbers = initializer([20_000, 16], tf.float32).numpy()
        assert np.abs(numbers).max() <= 0.5, "cut at two standard deviations"
        # A normal distribution cut at two standard deviations has 0.8796 of its standard deviation.
        assert numbers.std() == pytest.approx(0.25 * 0.8796, rel=0.01) and abs(numbers.mean()) < 0.005


def test_a_training_step_moves_the_tables_as_tensorflows_does(tmp_path: Path) -> None:
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


def both(api: Any, device: str | None) -> list[Any]:
    """Returns two columns whose lookups are on a device: one with its own table, and one with a shared table."""
    fc = tf.feature_column
    arguments: dict[str, Any] = {"initializer": table_initializer, "embedding_lookup_device": device}
    if device == "tpu_tensor_core":
        arguments["tensor_core_shape"] = [None, K]
    return [
        api.embedding_column(fc.categorical_column_with_identity("i", 6), 3, **arguments),
        *api.shared_embedding_columns([fc.categorical_column_with_identity("j", 6)], 3, **arguments),
    ]


def test_a_padded_column_looks_up_as_a_cpu_does_when_asked() -> None:
    from model_export.columns.device_lookup import cpu_lookups

    features = {"i": sparse(SAFE_ROWS, tf.int64), "j": sparse(SAFE_ROWS, tf.int64)}
    layer = tf.keras.layers.DenseFeatures(both(ours, "tpu_tensor_core"))
    on_cpu, padded = expected(SAFE_ROWS, "mean"), expected(SAFE_ROWS, "mean", width=K)
    assert np.abs(on_cpu - padded).max() > 0.01
    with cpu_lookups():
        np.testing.assert_allclose(layer(features), np.hstack([on_cpu, on_cpu]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer(features), np.hstack([padded, padded]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_serving_on_a_tpu_looks_up_on_its_host(device: str | None) -> None:
    features = {"i": sparse(SAFE_ROWS, tf.int64), "j": sparse(SAFE_ROWS, tf.int64)}
    results = []
    # With device None and a number of shards, TensorFlow's own column makes no table and then fails, so it gets
    # shards=None.
    for api, shards in ((ours, 1), (tf.compat.v1.tpu.experimental, 1 if device else None)):
        layer = tf.keras.layers.DenseFeatures(both(api, device))
        with tpu_context(shards=shards):
            results.append(layer(features).numpy())
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], np.hstack([expected(SAFE_ROWS, "mean")] * 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", [None, "tpu_embedding_core"])
def test_training_on_a_tpu_takes_what_the_embedding_cores_looked_up(device: str | None) -> None:
    for api in (ours, tf.compat.v1.tpu.experimental):
        with tf.Graph().as_default() as graph, tpu_context(is_inference=False):
            looked_up = {"i": tf.constant([[1.0, 2.0, 3.0]]), "j": tf.constant([[4.0, 5.0, 6.0]])}
            vectors = tf.compat.v1.keras.layers.DenseFeatures(both(api, device))(looked_up)
            with tf.compat.v1.Session() as session:
                assert session.run(vectors).tolist() == [[1, 2, 3, 4, 5, 6]]
            # The collection has the scope and the variable name of each table that the layer would make on a CPU, for
            # the embedding cores.
            (scopes,) = graph.get_collection("_tpu_feature_column_scope")
            assert scopes == {
                "i": ("dense_features/i_embedding", "embedding_weights"),
                "j_shared_embedding": ("", "j_shared_embedding"),
            }


@pytest.mark.parametrize(("device", "is_inference"), [("cpu", False), ("tpu_embedding_core", True)])
@pytest.mark.parametrize("index", [0, 1])
def test_what_a_tpu_can_not_do_is_refused_as_tensorflow_does(device: str, is_inference: bool, index: int) -> None:
    texts = []
    for api in (ours, tf.compat.v1.tpu.experimental):
        layer = tf.keras.layers.DenseFeatures([both(api, device)[index]], name="dense")
        with tpu_context(is_inference=is_inference), pytest.raises(ValueError, match="is not supported") as caught:
            layer({"i": sparse([[1]], tf.int64), "j": sparse([[1]], tf.int64)})
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


SEQUENCES: list[list[int]] = [[], [5, 0], [1, 1, 2, 3], [4], [3, -1, 2], []]


def sequence_columns(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Returns the three kinds of sequence column, each with features for ROWS."""
    fc = tf.feature_column
    file = folder / "words.txt"
    file.write_text("\n".join(WORDS))
    words = [[WORDS[i] if i >= 0 else "zz" for i in row] for row in SEQUENCES]
    return {
        "identity": (fc.sequence_categorical_column_with_identity("i", 6), {"i": sparse(SEQUENCES, tf.int64)}),
        "file": (
            fc.sequence_categorical_column_with_vocabulary_file("f", str(file)),
            {"f": sparse(words, tf.string)},
        ),
        "list": (fc.sequence_categorical_column_with_vocabulary_list("l", WORDS), {"l": sparse(words, tf.string)}),
    }


def wanted(length: int) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Returns the expected vectors, [B, L, D], with zeros for ids below 0, and the expected lengths."""
    vectors = np.zeros((len(SEQUENCES), length, 3), np.float32)
    for r, row in enumerate(SEQUENCES):
        for t, i in enumerate(row[:length]):
            vectors[r, t] = TABLE[i] if i >= 0 else 0
    return vectors, [min(len(row), length) for row in SEQUENCES]


def column_of(api: Any, is_shared: bool, categorical: Any, length: int, **arguments: Any) -> Any:
    """Makes a sequence column with the embedding function, or the function for shared embeddings, of a library."""
    arguments["initializer"] = table_initializer
    if is_shared:
        return api.shared_embedding_columns([categorical], 3, max_sequence_lengths=[length], **arguments)[0]
    return api.embedding_column(categorical, 3, max_sequence_length=length, **arguments)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("kind", ["identity", "file", "list"])
def test_a_sequence_is_cut_and_padded(kind: str, is_shared: bool, tmp_path: Path) -> None:
    categorical, features = sequence_columns(tmp_path)[kind]
    layers = tf.keras.experimental
    for device, safe, length in (
        (None, True, 1),
        ("cpu", True, 3),
        ("tpu_embedding_core", False, 4),
        (None, False, 6),
    ):
        column = column_of(
            ours, is_shared, categorical, length, embedding_lookup_device=device, use_safe_embedding_lookup=safe
        )
        vectors, lengths = layers.SequenceFeatures([column])(features)
        np.testing.assert_array_equal(vectors, wanted(length)[0])
        assert lengths.numpy().tolist() == wanted(length)[1]
    # If L is the longest length, nothing is cut or padded, and TensorFlow's own column gives the same.
    theirs = column_of(tf.compat.v1.tpu.experimental, is_shared, categorical, 4)
    vectors, lengths = layers.SequenceFeatures([theirs])(features)
    np.testing.assert_array_equal(vectors, wanted(4)[0])
    assert lengths.numpy().tolist() == wanted(4)[1]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_ids_of_one_step_are_combined_as_tensorflow_does(combiner: str) -> None:
    categorical = tf.feature_column.sequence_categorical_column_with_identity("i", 6)
    indices = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 2, 1], [1, 2, 0], [1, 2, 1]]
    features = {"i": tf.SparseTensor(indices, tf.constant([1, 2, 3, 4, 5, 5], tf.int64), [3, 3, 2])}
    arguments: dict[str, Any] = {"combiner": combiner, "initializer": table_initializer}
    theirs = tf.compat.v1.tpu.experimental.embedding_column(categorical, 3, max_sequence_length=9, **arguments)
    whole, _ = tf.keras.experimental.SequenceFeatures([theirs])(features)
    for length in (2, 3, 5):
        ours = embedding_column(categorical, 3, max_sequence_length=length, **arguments)
        vectors, lengths = tf.keras.experimental.SequenceFeatures([ours])(features)
        padded = np.zeros((3, length, 3), np.float32)
        padded[:, : min(length, 3)] = whole[:, :length]
        np.testing.assert_array_equal(vectors, padded)
        assert lengths.numpy().tolist() == [min(3, length), min(3, length), 0]


def test_training_a_sequence_is_tensorflows_and_cut_steps_do_not_train(tmp_path: Path) -> None:
    v1 = tf.compat.v1

    def gradient(api: Any, length: int, is_shared: bool) -> Any:
        with tf.Graph().as_default():
            categorical, features = sequence_columns(tmp_path)["identity"]
            column = column_of(api, is_shared, categorical, length)
            vectors, _ = tf.keras.experimental.SequenceFeatures([column], name="sequence_features")(features)
            (table,) = v1.global_variables()
            (pulled,) = tf.gradients(tf.reduce_sum(tf.square(vectors)), [table])
            with v1.Session() as session:
                session.run([v1.global_variables_initializer()])
                return table.op.name, session.run(tf.convert_to_tensor(pulled))

    for is_shared in (False, True):
        name, whole = gradient(ours, 4, is_shared)
        their_name, theirs = gradient(tf.compat.v1.tpu.experimental, 4, is_shared)
        assert (
            name
            == their_name
            == ("i_shared_embedding" if is_shared else "sequence_features/i_embedding/embedding_weights")
        )
        np.testing.assert_array_equal(whole, theirs)
        # With at most 1 id a sequence, the lookup reads rows 5, 1, 4 and 3, once each.
        steps = np.zeros_like(TABLE)
        steps[[5, 1, 4, 3]] = 2 * TABLE[[5, 1, 4, 3]]
        np.testing.assert_allclose(gradient(ours, 1, is_shared)[1], steps, rtol=1e-6)


def test_a_sequence_works_in_a_function_and_on_the_host_of_a_tpu(tmp_path: Path) -> None:
    categorical, features = sequence_columns(tmp_path)["identity"]
    for is_shared in (False, True):
        layer = tf.keras.experimental.SequenceFeatures([column_of(ours, is_shared, categorical, 3)])
        function = tf.function(lambda ids, layer=layer: layer({"i": ids}))
        results = [tuple(part.numpy() for part in function(features["i"]))]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            serving = tf.keras.experimental.SequenceFeatures([column_of(ours, is_shared, categorical, 3)])
            with tpu_context(shards=None):
                on_host = serving({"i": sparse(SEQUENCES, tf.int64)})
            session.run(tf.compat.v1.global_variables_initializer())
            results.append(session.run(on_host))
        for vectors, lengths in results:
            np.testing.assert_array_equal(vectors, wanted(3)[0])
            assert lengths.tolist() == wanted(3)[1]


def test_each_layer_refuses_the_others_columns_as_tensorflow_does(tmp_path: Path) -> None:
    categorical, features = sequence_columns(tmp_path)["identity"]
    plain = tf.feature_column.categorical_column_with_identity("i", 6)
    for is_shared in (False, True):
        with pytest.raises(ValueError, match="must not be of type SequenceCategoricalColumn"):
            tf.keras.layers.DenseFeatures([column_of(ours, is_shared, categorical, 3)])(features)
        with pytest.raises(ValueError, match="must be of type SequenceCategoricalColumn"):
            tf.keras.experimental.SequenceFeatures([column_of(ours, is_shared, plain, 0)])(features)


PADDED_ROWS = [[], [5, 0], [1, 1, 2], [], [3, 4, 5, 2], []]


def layer_of(api: Any, combiner: str, width: int, is_shared: bool, categorical: Any) -> Any:
    """Returns a layer with one padded column."""
    arguments: dict[str, Any] = {
        "dimension": 3,
        "combiner": combiner,
        "initializer": table_initializer,
        "embedding_lookup_device": "tpu_tensor_core",
        "tensor_core_shape": [None, width],
    }
    shared, single = api.shared_embedding_columns, api.embedding_column
    made = shared([categorical], **arguments) if is_shared else [single(categorical, **arguments)]
    return tf.keras.layers.DenseFeatures(made)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
def test_serving_is_tensorflows_padded_lookup(combiner: str, width: int, is_shared: bool) -> None:
    categorical = tf.feature_column.categorical_column_with_identity("i", 6)
    features = {"i": sparse(PADDED_ROWS, tf.int64)}
    theirs = layer_of(tf.compat.v1.tpu.experimental, combiner, width, is_shared, categorical)
    with tpu_context():
        wanted = theirs(features).numpy()
    outside = layer_of(ours, combiner, width, is_shared, categorical)(features).numpy()
    np.testing.assert_array_equal(outside, wanted)
    inside_layer = layer_of(ours, combiner, width, is_shared, categorical)
    with tpu_context():
        np.testing.assert_array_equal(inside_layer(features), wanted)
    np.testing.assert_allclose(wanted, expected(PADDED_ROWS, combiner, width=width), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_training_is_tensorflows_with_the_mask_it_asks_for(combiner: str, is_shared: bool) -> None:
    fc = tf.feature_column
    plain = fc.categorical_column_with_identity("i", 6)
    factors = weights_of(PADDED_ROWS)
    ids, mask = np.zeros([len(PADDED_ROWS), K], np.int32), np.zeros([len(PADDED_ROWS), K], np.float32)
    for r, row in enumerate(PADDED_ROWS):
        ids[r, : len(row[:K])], mask[r, : len(row[:K])] = row[:K], factors[r][:K]
    mine = layer_of(ours, combiner, K, is_shared, fc.weighted_categorical_column(plain, "w"))
    theirs = layer_of(tf.compat.v1.tpu.experimental, combiner, K, is_shared, plain)
    pull = tf.reshape(tf.range(1.0, len(PADDED_ROWS) + 1), [-1, 1])
    results = []
    for layer, features, context in (
        (mine, {"i": sparse(PADDED_ROWS, tf.int64), "w": sparse(factors, tf.float32)}, None),
        (theirs, {"i": tf.constant(ids), "i__TENSOR_CORE_MASK": tf.constant(mask)}, tpu_context(is_inference=False)),
    ):
        with tf.GradientTape() as tape:
            if context is None:
                vectors = layer(features)
            else:
                with context:
                    vectors = layer(features)
            target = tf.reduce_sum(vectors * pull)
        (table,) = tape.watched_variables()
        gradient = tf.convert_to_tensor(tape.gradient(target, table))
        tf.compat.v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, table)])
        results.append((vectors.numpy(), gradient.numpy(), table.numpy()))
    for mine_part, their_part in zip(*results, strict=True):
        np.testing.assert_allclose(mine_part, their_part, rtol=1e-6, atol=1e-6)
    assert np.abs(results[0][2] - TABLE).max() > 0.01, "the step moved the table"


def test_a_row_is_cut_by_column_also_where_columns_are_empty() -> None:
    categorical = tf.feature_column.categorical_column_with_identity("i", 6)
    # Row 0 has ids in columns 0, 2 and 5. A tensor core reads K = 3 columns, 0 to 2, of which column 1 is empty.
    features = {"i": tf.SparseTensor([[0, 0], [0, 2], [0, 5], [2, 1]], tf.constant([1, 2, 3, 4], tf.int64), [3, 6])}
    theirs = layer_of(tf.compat.v1.tpu.experimental, "mean", K, False, categorical)
    with tpu_context():
        wanted = theirs(features).numpy()
    np.testing.assert_array_equal(layer_of(ours, "mean", K, False, categorical)(features), wanted)
    np.testing.assert_allclose(wanted, expected([[1, 2], [], [4]], "mean"), rtol=1e-6)


def test_padding_gives_rows_and_mask() -> None:
    from model_export.columns.device_lookup import for_tpu, padded

    ids, weights = sparse([[7, -1, 9], [], [2**40]], tf.int64), sparse([[0.5, 2.0, 3.0], [], [-1.0]], tf.float64)
    values, mask = padded(ids, weights, 2, drops_negative=True)
    assert values.numpy().tolist() == [[7, 0], [0, 0], [2**40, 0]]
    assert mask.numpy().tolist() == [[0.5, 0.0], [0.0, 0.0], [-1.0, 0.0]] and mask.dtype == tf.float32
    assert padded(ids, None, 2, drops_negative=False)[0].numpy().tolist()[0] == [7, -1]
    assert for_tpu(values).numpy().tolist()[2] == [2**31 - 1, 0], "beyond any table, where a plain cast gives row 0"


def test_a_long_id_does_not_wrap_into_the_table() -> None:
    categorical = tf.feature_column.categorical_column_with_identity("i", 6)
    features = {"i": sparse([[2**32 + 1]], tf.int64)}
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer_of(ours, "mean", K, False, categorical)(features)
    theirs = layer_of(tf.compat.v1.tpu.experimental, "mean", K, False, categorical)
    with tpu_context():
        np.testing.assert_array_equal(theirs(features), TABLE[[1]])  # TensorFlow's column reads row 1 for id 2**32 + 1


def test_words_reach_the_padded_lookup_of_a_tpu() -> None:
    categorical = tf.feature_column.categorical_column_with_vocabulary_list("w", list("abcdef"))
    features = {"w": sparse([["b", "zz", "f"], ["zz"]], tf.string)}
    for is_shared in (False, True):
        layer = layer_of(ours, "mean", K, is_shared, categorical)
        with tpu_context():
            np.testing.assert_allclose(layer(features), expected([[1, 5], []], "mean"), rtol=1e-6)


def test_sqrtn_has_no_padded_form() -> None:
    from model_export.columns.device_lookup import combined

    with pytest.raises(ValueError, match="other than sum and mean"):
        combined(tf.zeros([2, 2]), tf.zeros([1, 1], tf.int64), tf.ones([1, 1]), "sqrtn")
