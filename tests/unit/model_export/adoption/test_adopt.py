"""SavedModels of other makers, from TensorFlow 1 and 2, are adopted and served by our loader."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.__main__ import main
from model_export.errors import ExportError
from service.core.native_servable import compile_native
from service.loading.loader import ServableLoader
from tests.toy_model import manifest_of
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

adopt = Late("model_export.adoption.adopt", "adopt")

FILMS = np.arange(20, dtype=np.float32).reshape(10, 2)
WORDS = np.arange(12, dtype=np.float32).reshape(4, 3)
ONE_FEATURE = '[tables.film]\n[features.film]\ntable = "film"\n'
CREATED = datetime(2024, 5, 6, tzinfo=UTC)


@pytest.fixture(scope="module")
def tf2_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TensorFlow 2 model, version 1: serving_default is a lookup of film, score multiplies it; not to be changed."""

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = {"film": tf.Variable(FILMS), "copy": tf.Variable(WORDS)}
            self.kernel = tf.Variable(np.ones((2, 2), np.float32))
            self.step = tf.Variable(3, dtype=tf.int64)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
        def look_up(self, film: Any) -> dict[str, Any]:
            return {"film": tf.gather(self.embedding["film"], film)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
        def score(self, film: Any) -> dict[str, Any]:
            return {"film": tf.gather(self.embedding["film"], film) @ self.kernel}

    folder = tmp_path_factory.mktemp("tf2") / "model" / "1"
    model = Model()
    signatures = {"serving_default": model.look_up, "score": model.score}
    tf.saved_model.save(model, str(folder), signatures=signatures)
    return folder


@pytest.fixture(scope="module")
def tf1_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saves a TensorFlow 1 model with a variable in three parts and a reference variable; tests must not change it."""
    v1 = tf.compat.v1
    folder = tmp_path_factory.mktemp("tf1") / "saved"
    with tf.Graph().as_default(), v1.Session() as session:
        partitioner = v1.fixed_size_partitioner(3)
        films = v1.get_variable("film", [10, 2], partitioner=partitioner, initializer=v1.zeros_initializer())
        v1.get_variable("word", initializer=WORDS, use_resource=False)
        ids = v1.placeholder(tf.int64, [None], "ids")
        vectors = v1.nn.embedding_lookup(films, ids, partition_strategy="div")
        session.run(v1.global_variables_initializer())
        for part, rows in zip(films, (FILMS[:4], FILMS[4:7], FILMS[7:]), strict=True):
            part.load(rows, session)
        builder = v1.saved_model.Builder(str(folder))
        definition = v1.saved_model.predict_signature_def({"ids": ids}, {"vectors": vectors})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": definition})
        builder.save()
    return folder


def spec_file(folder: Path, text: str) -> Path:
    """Writes a spec."""
    path = folder / "spec.toml"
    path.write_text(text)
    return path


def served(artifact: Path, signature: str, inputs: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns the outputs of the server's own lookups, without TensorFlow."""
    servable = ServableLoader(frozenset({"serve"}), "off", compile_native)("model", 1, artifact)
    arrays = {name: np.asarray(value, np.int64) for name, value in inputs.items()}
    outputs = tuple(manifest_of(artifact).signatures[signature].features)
    entry = manifest_of(artifact).signatures[signature]
    names = tuple(entry.features[feature].output or feature for feature in outputs)
    assert servable.native is not None
    answer = servable.native.run(signature, arrays, names)
    return {name: vectors.tolist() for name, vectors in answer.items()}


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of all files in a folder, by path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_signature_that_is_a_lookup_is_described_where_it_stands(tf2_model: Path, tmp_path: Path) -> None:
    before = contents(tf2_model)
    artifact = adopt(tf2_model, spec_file(tmp_path, ONE_FEATURE), tmp_path / "out", clock=lambda: CREATED)
    assert contents(tf2_model) == before
    assert artifact == tmp_path / "out" / "1"
    manifest = manifest_of(artifact)
    # Signature "score" has the input and the output name of a lookup, but does not return rows of the table.
    assert {n: e.kind for n, e in manifest.signatures.items()} == {"serving_default": "lookup", "score": "predict"}
    assert manifest.tables["film"].variable == "embedding/film/.ATTRIBUTES/VARIABLE_VALUE"
    assert manifest.provenance["created"].startswith("2024-05-06") and manifest.provenance["adopted_from"] == "1"
    copied = contents(artifact)
    assert {name: copied[name] for name in before} == before
    assert served(artifact, "serving_default", {"film": [9, 0]}) == {"film": [[18, 19], [0, 1]]}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_spec_takes_the_tables_that_adopt_takes(tmp_path: Path, dtype: str) -> None:
    module = tf.Module()
    module.film = tf.Variable(tf.cast(FILMS / 3, dtype))
    score = tf.function(
        lambda ids: {"score": tf.reduce_sum(tf.gather(module.film, ids), axis=1)},
        input_signature=[tf.TensorSpec([None], tf.int64, "ids")],
    )
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"serving_default": score})
    text = ONE_FEATURE + "[lookup]\n"
    artifact = adopt(tmp_path / "saved", spec_file(tmp_path, text), tmp_path / "out", measure=False)
    assert manifest_of(artifact).tables["film"].dtype == dtype
    stored = tf.gather(module.film, [9, 0])
    expected = stored if dtype == "float64" else tf.cast(stored, tf.float32)
    assert served(artifact, "lookup", {"film": [9, 0]}) == {"film": expected.numpy().tolist()}


def test_where_none_fits_a_lookup_is_added_and_the_rest_still_runs(tf2_model: Path, tmp_path: Path) -> None:
    from model_export.graphs.signature_runner import open_signatures

    (tmp_path / "words.txt").write_text("x\ny\n")
    text = """
        [tables.film]
        variable = "embedding/film"
        combiner = "sum"
        [features.films]
        table = "film"
        is_ragged = true
        max_ids_per_row = 3
        on_bad_id = "drop"
        vocabulary = { file = "words.txt", first_id = 1, oov_id = 0 }
        [lookup]
        device = ["cpu", "tpu_tensor_core"]
        batch_sizes = [2, 4]
    """
    artifact = adopt(tf2_model, spec_file(tmp_path, text), tmp_path / "out", version=7)
    manifest = manifest_of(artifact)
    assert artifact.name == "7"
    lookups = sorted(name for name, entry in manifest.signatures.items() if entry.kind == "lookup")
    assert lookups == ["lookup", "lookup_tpu_tensor_core"]
    assert manifest.signatures["lookup_tpu_tensor_core"].batch_sizes == (2, 4)
    assert (artifact / "assets.extra/vocabulary_films.txt").read_text() == "x\ny\n"
    ids = {"films__values": [1, 2, -1], "films__row_splits": [0, 3, 3]}
    assert served(artifact, "lookup", ids) == {"films": [[6, 8], [0, 0]]}
    with open_signatures(artifact) as runner:
        assert runner.names == ["lookup", "lookup_tpu_tensor_core", "score", "serving_default"]
        assert runner.run("lookup", {k: np.array(v) for k, v in ids.items()})["films"].tolist() == [[6, 8], [0, 0]]
        assert runner.run("score", {"film": np.array([1])})["film"].tolist() == [[5, 5]]
    loaded = tf.saved_model.load(str(artifact))
    assert loaded.signatures["score"](film=tf.constant([1], tf.int64))["film"].numpy().tolist() == [[5, 5]]


def test_a_variable_in_parts_becomes_one_table_beside_the_variables(tf1_model: Path, tmp_path: Path) -> None:
    text = """
        [tables.film]
        [tables.word]
        [features.ids]
        table = "film"
        [features.words]
        table = "word"
        is_ragged = true
        [signatures.serving_default]
        outputs = { ids = "vectors" }
        [lookup]
        device = "cpu"
    """
    before = contents(tf1_model)
    artifact = adopt(tf1_model, spec_file(tmp_path, text), tmp_path / "out")
    assert contents(tf1_model) == before
    manifest = manifest_of(artifact)
    film = manifest.tables["film"]
    assert film.file == "assets.extra/table_film.data-00000-of-00001"
    assert np.fromfile(artifact / film.file, np.float32, 20, offset=film.offset).tolist() == FILMS.ravel().tolist()
    assert manifest.tables["word"].file == "variables/variables.data-00000-of-00001"
    assert sorted(manifest.signatures) == ["lookup", "serving_default"]
    assert served(artifact, "serving_default", {"ids": [5, 9]}) == {"vectors": [[10, 11], [18, 19]]}
    both = served(artifact, "lookup", {"ids": [4], "words__values": [1, 3], "words__row_splits": [0, 2]})
    assert both == {"ids": [[8, 9]], "words": [[6, 7, 8]]}


def test_inputs_of_other_names_are_mapped(tf1_model: Path, tmp_path: Path) -> None:
    text = """
        [tables.film]
        [features.item]
        table = "film"
        [signatures.serving_default]
        inputs = { item = { ids = "ids" } }
        outputs = { item = "vectors" }
    """
    artifact = adopt(tf1_model, spec_file(tmp_path, text), tmp_path / "out")
    assert list(manifest_of(artifact).signatures) == ["serving_default"]
    assert served(artifact, "serving_default", {"ids": [1]}) == {"vectors": [[2, 3]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ONE_FEATURE + '[signatures.score]\noutputs = { film = "film" }\n',
            "'score', feature 'film': the graph's ops do not",
        ),
        (ONE_FEATURE + "[signatures.absent]\n", r"\[signatures.absent\]: the SavedModel has signatures \['score', "),
        (ONE_FEATURE + '[signatures.score]\ninputs = { film = { ids = "x" } }\n', r"it takes \['film'\]"),
        (ONE_FEATURE.replace("film]\n[f", 'film]\nvariable = "nothing"\n[f'), "'nothing' is not there"),
        (ONE_FEATURE.replace("film]\n[f", 'film]\nvariable = "step"\n[f'), r"'step' is int64 \[\]; a table is a"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused_and_leaves_nothing(
    tf2_model: Path, tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        adopt(tf2_model, spec_file(tmp_path, text), tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_policy_that_the_signature_does_not_have_is_noticed(tf2_model: Path, tmp_path: Path) -> None:
    text = ONE_FEATURE + 'on_bad_id = "clamp"\n[signatures.serving_default]\n'
    with pytest.raises(ExportError, match="on_bad_id is 'clamp' in the spec, 'error' in the graph"):
        adopt(tf2_model, spec_file(tmp_path, text), tmp_path / "out")


def test_a_spec_that_the_graph_does_not_say_is_believed_only_if_allowed(tmp_path: Path) -> None:
    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.film = tf.Variable(FILMS)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
        def look_up(self, film: Any) -> dict[str, Any]:
            # bitcast changes nothing, but adopt does not know it.
            return {"film": tf.gather(self.film, tf.bitcast(film, tf.int64))}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "saved"), signatures=model.look_up)
    spec = spec_file(tmp_path, ONE_FEATURE + "[signatures.serving_default]\n")
    with pytest.raises(ExportError, match="Bitcast is not an op of a known lookup(.|\n)*--allow_unproven"):
        adopt(tmp_path / "saved", spec, tmp_path / "out")
    artifact = adopt(tmp_path / "saved", spec, tmp_path / "out", allow_unproven=True)
    assert manifest_of(artifact).provenance["unproven"] == ["serving_default/film"]
    servable = ServableLoader(frozenset({"serve"}), "off", compile_native)("model", 1, artifact)
    assert servable.unproven == ("serving_default/film",)
    assert served(artifact, "serving_default", {"film": [3]}) == {"film": [[6, 7]]}


def test_an_added_lookup_adds_as_the_graph_does_and_is_compared_with_its_rows(tmp_path: Path) -> None:
    module = tf.Module()
    module.films = tf.Variable(np.random.default_rng(4).standard_normal((50, 9)).astype(np.float32))
    module.kernel = tf.Variable(np.ones((9, 1), np.float32))

    def summed(values: Any, splits: Any) -> Any:
        lengths = tf.cast(splits[1:] - splits[:-1], tf.int32)
        rows = tf.repeat(tf.range(tf.size(lengths)), lengths)
        films = tf.gather(module.films, values)
        return tf.sparse.segment_sum(films, tf.range(tf.size(values)), rows, num_segments=tf.size(lengths))

    # An input of a fixed size does not have a row for each row of ids.
    score = tf.function(
        lambda ids_values, ids_splits, size: {
            "score": summed(ids_values, ids_splits) @ module.kernel + tf.cast(size[1], tf.float32)
        }
    )
    vector = tf.TensorSpec([None], tf.int64)
    signature = score.get_concrete_function(vector, vector, tf.TensorSpec([2], tf.int64))
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=signature)
    artifact = adopt(tmp_path / "saved", out=tmp_path / "out", measure=False)
    manifest = manifest_of(artifact)
    assert {name: entry.kind for name, entry in manifest.signatures.items()} == {
        "serving_default": "predict",
        "lookup": "lookup",
    }
    (feature,) = manifest.signatures["lookup"].features.values()
    # An op that adds in blocks of 8 takes no weights.
    assert (feature.summation, feature.weights) == ("blocks_of_8", None)
    ends = np.cumsum([0, 1, 0, 2, 7, 8, 9, 10, 17, 40])
    ids = np.random.default_rng(5).integers(0, 50, ends[-1])
    answer = served(artifact, "lookup", {feature.ids: ids, str(feature.row_splits): ends})
    assert answer == {"ids": summed(tf.constant(ids), tf.constant(ends)).numpy().tolist()}
    compared = [comparison["with_"] for comparison in manifest.parity["lookup"]["comparisons"]]
    assert "the rows that 'serving_default' gathers" in compared


def test_an_added_lookup_of_a_sum_that_the_graph_scales_by_one_adds_up(tmp_path: Path) -> None:
    # The factor changes denormal numbers, and the sum has then the bits of the order in which segment_mean adds.
    module = tf.Module()
    module.films = tf.Variable(np.random.default_rng(1).standard_normal((50_001, 4)).astype(np.float32))

    def summed(values: Any, splits: Any) -> Any:
        lengths = tf.cast(splits[1:] - splits[:-1], tf.int32)
        films = tf.gather(module.films, values)
        return tf.math.segment_sum(films, tf.repeat(tf.range(tf.size(lengths)), lengths)) * 1.0

    vector = tf.TensorSpec([None], tf.int64)

    def twice(v: Any, s: Any) -> dict[str, Any]:
        vectors = summed(v, s)
        return {"twice": tf.concat([vectors, vectors * 2], 1)}

    signature = tf.function(twice).get_concrete_function(vector, vector)
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=signature)
    artifact = adopt(tmp_path / "saved", out=tmp_path / "out", measure=False)
    ids, splits = np.array([3, 7, 7, 11]), np.array([0, 1, 4])
    wanted = module.films.numpy()
    sums = [wanted[3].tolist(), (wanted[7] + wanted[7] + wanted[11]).tolist()]
    (feature,) = manifest_of(artifact).signatures["lookup"].features.values()
    assert served(artifact, "lookup", {feature.ids: ids, str(feature.row_splits): splits}) == {"v": sums}


def test_one_feature_may_take_ids_of_two_dtypes(tmp_path: Path) -> None:
    module = tf.Module()
    module.film = tf.Variable(FILMS)

    def signature(dtype: str, answer: Any) -> Any:
        return tf.function(
            lambda film: {"film": answer(tf.gather(module.film, film))},
            input_signature=[tf.TensorSpec([None], dtype, "film")],
        )

    signatures = {"few": signature("int32", tf.identity), "score": signature("int64", lambda rows: rows * 2.0)}
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=signatures)
    artifact = adopt(tmp_path / "saved", out=tmp_path / "out", measure=False)
    kinds = {name: (entry.kind, [*entry.features]) for name, entry in manifest_of(artifact).signatures.items()}
    assert kinds == {"few": ("lookup", ["film"]), "score": ("predict", ["film"])}


def test_one_input_may_be_read_by_several_lookups(tmp_path: Path) -> None:
    module = tf.Module()
    module.film, module.word = tf.Variable(FILMS), tf.Variable(WORDS)

    def sums(values: Any, splits: Any, weights: Any) -> dict[str, Any]:
        ids = tf.RaggedTensor.from_row_splits(values, splits).to_sparse()
        given = tf.RaggedTensor.from_row_splits(weights, splits).to_sparse()
        return {
            "mean": tf.nn.embedding_lookup_sparse(module.film, ids, given, combiner="mean"),
            "sum": tf.nn.embedding_lookup_sparse(module.word, ids, None, combiner="sum"),
            "row": tf.gather(module.word, values),
        }

    item, values, splits = (tf.TensorSpec([None], tf.int64, name) for name in ("item", "values", "splits"))
    answers: dict[str, tuple[Any, list[Any]]] = {
        "of two sizes": (lambda item: {"a": tf.gather(module.film, item), "b": tf.gather(module.word, item)}, [item]),
        "of two policies": (
            lambda item: {
                "a": tf.gather(module.film, item),
                "b": tf.gather(module.film, tf.where(item < 0, item + len(FILMS), item)),
            },
            [item],
        ),
        "of two combiners": (sums, [values, splits, tf.TensorSpec([None], tf.float32, "weights")]),
    }
    signatures = {
        name.replace(" ", "_"): tf.function(answer, input_signature=specs) for name, (answer, specs) in answers.items()
    }
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=signatures)
    artifact = adopt(tmp_path / "saved", out=tmp_path / "out", measure=False)
    kinds = {name: (entry.kind, len(entry.features)) for name, entry in manifest_of(artifact).signatures.items()}
    assert kinds == {
        "of_two_sizes": ("lookup", 2),
        "of_two_policies": ("lookup", 2),
        "of_two_combiners": ("lookup", 3),
    }
    found = served(artifact, "of_two_sizes", {"item": [3, 0]})
    assert sorted(found.values()) == sorted([FILMS[[3, 0]].tolist(), WORDS[[3, 0]].tolist()])


def test_features_that_share_row_splits_are_looked_up_by_a_prediction(tmp_path: Path) -> None:
    module = tf.Module()
    module.film, module.word = tf.Variable(FILMS), tf.Variable(WORDS)

    def sums(film: Any, word: Any, splits: Any) -> Any:
        def of(table: Any, ids: Any) -> Any:
            return tf.math.unsorted_segment_sum(
                tf.gather(table, ids), tf.ragged.row_splits_to_segment_ids(splits), tf.shape(splits)[0] - 1
            )

        return {"film": of(module.film, film), "word": of(module.word, word)}

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("film", "word", "splits")]
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"sums": tf.function(sums, input_signature=specs)})
    told: list[str] = []
    entry = manifest_of(adopt(tmp_path / "saved", out=tmp_path / "out", measure=False, say=told.append)).signatures[
        "sums"
    ]
    assert (entry.kind, len(entry.features), entry.run) == ("predict", 2, "cut")
    assert "sums: features 'film' and 'word' share input 'splits'" in told
    # To be timed, the signature is sent as many ids of each feature.
    adopt(tmp_path / "saved", out=tmp_path / "out", say=told.append)
    assert not any("could not be compared" in line or "please report" in line for line in told)


def test_ids_that_two_features_split_differently_are_looked_up(tmp_path: Path) -> None:
    module = tf.Module()
    module.film = tf.Variable(FILMS)

    def sums(film: Any, *splits: Any) -> Any:
        return {
            f"sums_{number}": tf.math.unsorted_segment_sum(
                tf.gather(module.film, film), tf.ragged.row_splits_to_segment_ids(one), tf.shape(one)[0] - 1
            )
            for number, one in enumerate(splits)
        }

    def both(film: Any, by_word: Any) -> Any:
        return {"rows": tf.gather(module.film, film), **sums(film, by_word)}

    def rows(film: Any) -> Any:
        return {"rows": 2 * tf.gather(module.film, film)}

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("film", "by_word", "by_line")]
    functions = {
        call.__name__: tf.function(call, input_signature=specs[:count], autograph=False)
        for call, count in ((sums, 3), (both, 2), (rows, 1))
    }
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=functions)
    entries = manifest_of(adopt(tmp_path / "saved", out=tmp_path / "out", measure=False)).signatures
    found = {name: (entry.kind, len(entry.features)) for name, entry in entries.items()}
    assert found == {"sums": ("lookup", 2), "both": ("lookup", 2), "rows": ("predict", 1)}


def test_one_input_of_two_vocabularies_is_looked_up_by_a_prediction(tmp_path: Path) -> None:
    module = tf.Module()
    module.film, module.word = tf.Variable(FILMS), tf.Variable(WORDS)

    def hashed(table: Any, key: Any) -> Any:
        return tf.gather(table, tf.strings.to_hash_bucket_fast(key, table.shape[0]))

    rows = tf.function(
        lambda key: {"film": hashed(module.film, key), "word": hashed(module.word, key)},
        input_signature=[tf.TensorSpec([None], tf.string, "key")],
    )
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"rows": rows})
    told: list[str] = []
    entry = manifest_of(adopt(tmp_path / "saved", out=tmp_path / "out", measure=False, say=told.append)).signatures[
        "rows"
    ]
    assert (entry.kind, len(entry.features), entry.run) == ("predict", 2, "cut")
    assert any("read input 'key' by different vocabularies" in line for line in told)
    assert not any("please report" in line for line in told)
    # To be timed, the signature is sent keys.
    adopt(tmp_path / "saved", out=tmp_path / "out", say=told.append)
    assert not any("could not be compared" in line for line in told)


def test_an_added_lookup_takes_the_keys_that_a_prediction_hashes(tmp_path: Path) -> None:
    module = tf.Module()
    module.film = tf.Variable(FILMS)
    score = tf.function(
        lambda film: {"score": tf.gather(module.film, tf.strings.to_hash_bucket_fast(film, len(FILMS))) * 2.0},
        input_signature=[tf.TensorSpec([None], tf.string, "film")],
    )
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"score": score})
    manifest = manifest_of(adopt(tmp_path / "saved", out=tmp_path / "out", measure=False))
    assert {name: entry.kind for name, entry in manifest.signatures.items()} == {"score": "predict", "lookup": "lookup"}
    assert manifest.features["film"].vocabulary is not None


@pytest.mark.parametrize("unknown", [-1, 2])
def test_a_vocabulary_may_hold_the_largest_integer(tmp_path: Path, unknown: int) -> None:
    module = tf.Module()
    module.film = tf.Variable(FILMS)
    keys = tf.lookup.KeyValueTensorInitializer(
        tf.constant([2**63 - 1, -(2**63)], tf.int64), tf.range(2, dtype=tf.int64)
    )
    module.keys = tf.lookup.StaticHashTable(keys, unknown)
    rows = tf.function(
        lambda film: {"rows": tf.gather(module.film, module.keys.lookup(film))},
        input_signature=[tf.TensorSpec([None], tf.int64, "film")],
    )
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"rows": rows})
    artifact = adopt(tmp_path / "saved", out=tmp_path / "out", measure=False)
    assert manifest_of(artifact).signatures["rows"].kind == "lookup"
    assert served(artifact, "rows", {"film": [2**63 - 1, -(2**63)]}) == {"rows": FILMS[:2].tolist()}


def test_scales_of_quantized_rows_are_no_vectors_of_an_added_lookup(tmp_path: Path) -> None:
    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rows = tf.Variable(np.arange(20, dtype=np.int8).reshape(10, 2))
            self.scales = tf.Variable(np.linspace(0.5, 2, 10, dtype=np.float32).reshape(10, 1))
            self.words = tf.Variable(WORDS)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
        def serving_default(self, film: Any, word: Any) -> dict[str, Any]:
            film = tf.where(film < 0, film + 10, film)
            vectors = tf.cast(tf.gather(self.rows, film), tf.float32) * tf.gather(self.scales, film)
            return {"y": tf.concat([vectors, tf.gather(self.words, word)], 1) * 2.0}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "saved"), signatures={"serving_default": model.serving_default})
    artifact = adopt(tmp_path / "saved", out=tmp_path / "adopted")
    assert [*manifest_of(artifact).signatures["lookup"].features] == ["word"]


def test_ids_that_read_no_row_are_told_and_looked_up_by_tensorflow(tmp_path: Path) -> None:
    module = tf.Module()
    module.films = tf.Variable(np.arange(40, dtype=np.float32).reshape(20, 2))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64)])  # type: ignore[untyped-decorator]
    def greatest(ids: Any) -> dict[str, Any]:
        known = tf.ragged.boolean_mask(ids, ids >= 0)
        return {"greatest": tf.reduce_max(tf.gather(module.films, known).to_tensor(default_value=-9.0), 1)}

    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=greatest)
    lines: list[str] = []
    artifact = adopt(tmp_path / "saved", out=tmp_path / "out", measure=False, say=lines.append)
    assert not manifest_of(artifact).signatures["serving_default"].features
    assert any("reads no row in a trial; by the graph's ops it is refused" in line for line in lines), lines


def test_a_name_that_is_taken_is_refused(tf2_model: Path, tmp_path: Path) -> None:
    first = adopt(tf2_model, spec_file(tmp_path, ONE_FEATURE + "[lookup]\n"), tmp_path / "out")
    with pytest.raises(ExportError, match="has a lookup manifest already"):
        adopt(first, tmp_path / "spec.toml", tmp_path / "out")
    shutil.rmtree(first / "assets.extra")
    with pytest.raises(ExportError, match=r"has signatures \['lookup'\] already"):
        adopt(first, tmp_path / "spec.toml", tmp_path / "out")


def test_the_command_needs_no_spec_and_tells_how_each_signature_is_served(
    tf2_model: Path, tf1_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = shutil.copytree(tf2_model, tmp_path / "model" / "1")
    assert main(["adopt", str(version)]) == 0
    told = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in told.splitlines() if line}
    assert lines["serving_default"][1:3] == ["lookup", "nothing"] and lines["serving_default"][-1] == "film"
    assert "score: output 'film' is computed from looked-up rows by MatMul" in told
    assert f"adopted and verified: {tmp_path / 'model' / '2'}" in told
    assert served(tmp_path / "model" / "2", "serving_default", {"film": [3]}) == {"film": [[6, 7]]}
    assert main(["adopt", str(version), "--spec", str(spec_file(tmp_path, ONE_FEATURE))]) == 0
    assert "adopted and verified" in capsys.readouterr().out and (tmp_path / "model" / "3").is_dir()
    assert main(["adopt", str(tf1_model), "--spec", str(tmp_path / "spec.toml")]) == 1
    assert "is not a version of a model; name the folder for the copy" in capsys.readouterr().err
    assert main(["adopt", str(tmp_path)]) == 1
    assert "is a folder of models: name a version" in capsys.readouterr().err


def test_a_variable_in_parts_is_found_without_a_spec(tf1_model: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    artifact = adopt(tf1_model, out=tmp_path / "out", say=lines.append)
    manifest = manifest_of(artifact)
    assert list(manifest.signatures) == ["serving_default"] and list(manifest.tables) == ["film"]
    assert served(artifact, "serving_default", {"ids": [5, 9]}) == {"vectors": [[10, 11], [18, 19]]}
    assert any("timing signature serving_default" in line for line in lines)


def test_what_reads_no_table_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    class Model(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])  # type: ignore[untyped-decorator]
        def double(self, x: Any) -> dict[str, Any]:
            return {"y": 2 * x}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "saved"), signatures={"serving_default": model.double})
    with pytest.raises(ExportError, match="no signature reads rows of a variable"):
        adopt(tmp_path / "saved", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_found_can_be_given_other_names(
    tf2_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adopt", str(tf2_model), "--print_spec"]) == 0
    text = capsys.readouterr().out
    assert 'film = "film"  # embedding/film/.ATTRIBUTES/VARIABLE_VALUE, 10 x 2 float32' in text
    assert 'film = "film"  # rows by film of table film' in text
    renamed = text.replace('film = "film"  # e', 'film = "films"  # e').replace(
        'film = "film"  # r', 'film = "seen"  # r'
    )
    artifact = adopt(tf2_model, spec_file(tmp_path, renamed), tmp_path / "out", measure=False)
    manifest = manifest_of(artifact)
    assert list(manifest.tables) == ["films"]
    assert manifest.features["seen"].table == "films"
    assert served(artifact, "serving_default", {"film": [3]}) == {"film": [[6, 7]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[names.tables]\nfilms = "x"\n', "no table 'films' was found; found: film"),
        ('[names.features]\nfilm = "2 x"\n', "'2 x' is no name; use letters, digits and _"),
        ("[names]\n[tables.film]\n", r"holds \[names.tables\] and \[names.features\] and nothing else"),
    ],
)
def test_names_that_do_not_fit_are_refused(tf2_model: Path, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        adopt(tf2_model, spec_file(tmp_path, text), tmp_path / "out")


def test_a_lookup_may_answer_the_vectors_of_a_row_side_by_side(tmp_path: Path) -> None:
    # The rows that the score gathers are compared with the lookup's answers, vector by vector.
    module = tf.Module()
    module.film = tf.Variable(FILMS)
    specs = [tf.TensorSpec([None, 2], tf.int64, "film")]
    flat = tf.function(lambda film: {"flat": tf.reshape(tf.gather(module.film, film), [-1, 4])}, specs)
    score = tf.function(lambda film: {"score": tf.reduce_sum(tf.gather(module.film, film), [1, 2])}, specs)
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"flat": flat, "score": score})
    manifest = manifest_of(adopt(tmp_path / "1", out=tmp_path / "adopted", measure=False))
    assert {name: entry.kind for name, entry in manifest.signatures.items()} == {"flat": "lookup", "score": "predict"}


@pytest.mark.parametrize("shape", [(None, None, None), (None, None, 3), (None, 3, None)])
def test_ids_may_leave_several_sizes_open(tmp_path: Path, shape: tuple[int | None, ...]) -> None:
    module = tf.Module()
    module.film = tf.Variable(FILMS)
    rows = tf.function(lambda film: {"rows": tf.gather(module.film, film)}, [tf.TensorSpec(shape, tf.int64, "film")])
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"rows": rows})
    manifest = manifest_of(adopt(tmp_path / "1", out=tmp_path / "adopted", measure=False))
    assert "rows" in manifest.signatures
