"""Trains a real artifact on synthetic ratings, exports it, loads it in TensorFlow, and damages it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.__main__ import main
from model_export.errors import ExportError
from model_export.export_model import export
from model_export.parity import oracle
from model_export.parity.integrity import check_integrity
from model_export.parity.saved_table import read_tables
from movielens.ratings import synthetic_ratings
from service.artifact.manifest import MANIFEST_PATH, Manifest
from service.errors import ArtifactError
from service.types import Array, RaggedIds
from tests.toy_model import manifest_of
from tests.unit.model_export.late import late

with late():
    from model_export.parity.parity_cases import CaseWriter

pytestmark = pytest.mark.tf

BATCH_SIZES = (1, 4)
# Both sides are sums of a few float32 terms, so they differ by rounding only.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(scope="module")
def artifact(rating_version: Path) -> Path:
    """The artifact that each test looks at."""
    return rating_version


@pytest.fixture(scope="module")
def manifest(artifact: Path) -> Manifest:
    """The artifact's manifest."""
    read = manifest_of(artifact)
    return read


@pytest.fixture(scope="module")
def signatures(artifact: Path) -> Any:
    """The signatures of the artifact, loaded by TensorFlow."""
    from loadtest.foreign.frameworks import tf

    loaded = tf.saved_model.load(str(artifact), tags=["serve"])
    return {name: _Signature(loaded, function) for name, function in loaded.signatures.items()}


class _Signature:
    """Calls a signature with numpy arrays; keeps the loaded model, whose tables it reads, alive."""

    def __init__(self, loaded: Any, function: Any) -> None:
        self._loaded = loaded
        self._function = function

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        from loadtest.foreign.frameworks import tf

        specs = self._function.structured_input_signature[1]
        outputs = self._function(**{name: tf.constant(inputs[name], spec.dtype) for name, spec in specs.items()})
        return {name: output.numpy() for name, output in outputs.items()}


def lookup_inputs(**changed: Any) -> dict[str, Any]:
    """Returns two rows of every feature; the second row has empty bags."""
    inputs = {
        "user_id": [1, 2],
        "film_id": [3, 0],
        "occupation": [1, 0],
        "genres__values": [2, 1],
        "genres__row_splits": [0, 2, 2],
        "genres__weights": [],
        "recent_films__values": [5, 5, 7],
        "recent_films__row_splits": [0, 3, 3],
        "recent_films__weights": [],
    }
    return inputs | changed


def predict_inputs(**changed: Any) -> dict[str, Any]:
    """Returns the inputs of lookup_inputs() without the weights."""
    return {name: value for name, value in lookup_inputs().items() if not name.endswith("__weights")} | changed


def test_the_manifest_says_where_the_variables_bytes_are(artifact: Path, manifest: Manifest) -> None:
    from loadtest.foreign.frameworks import tf

    assert sorted(manifest.tables) == ["film", "genre", "occupation", "user"]
    reader = tf.train.load_checkpoint(str(artifact / "variables" / "variables"))
    for entry in manifest.tables.values():
        content = (artifact / entry.file).read_bytes()[entry.offset : entry.offset + entry.nbytes]
        assert content == reader.get_tensor(entry.variable).tobytes()
        assert entry.dtype == "float32" and entry.nbytes == 4 * entry.vocabulary_size * entry.embedding_dim


def test_the_tables_are_those_that_were_trained(rating_run: Path, artifact: Path, manifest: Manifest) -> None:
    from loadtest.foreign.frameworks import tf

    trained = tf.train.load_checkpoint(str(rating_run / "checkpoints"))
    for name, table in read_tables(artifact, manifest).items():
        key = f"model/embedding/_tpu_embedding/{name}/.ATTRIBUTES/VARIABLE_VALUE"
        assert np.array_equal(table[np.arange(table.shape[0])], trained.get_tensor(key))


def test_variables_have_readable_names_and_no_optimizer_slots(artifact: Path) -> None:
    from loadtest.foreign.frameworks import tf

    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    names = [name.removesuffix(suffix) for name, _ in tf.train.list_variables(str(artifact / "variables/variables"))]
    assert sorted(set(names) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}) == [
        "tables/film",
        "tables/genre",
        "tables/occupation",
        "tables/user",
        "tower/hidden/0/bias",
        "tower/hidden/0/kernel",
        "tower/hidden/1/bias",
        "tower/hidden/1/kernel",
        "tower/mean_rating",
        "tower/output/bias",
        "tower/output/kernel",
        "tower/rating_range",
        "tower/taste",
    ]


def test_files_of_the_artifact(artifact: Path, manifest: Manifest) -> None:
    assert sorted(manifest.files) == [
        "assets.extra/labels/0-film.starts",
        "assets.extra/labels/0-film.txt",
        "assets.extra/recorded_predictions",
        "assets.extra/tf_serving_warmup_requests",
        "assets/genres.txt",
        "assets/occupation.txt",
        "fingerprint.pb",
        "saved_model.pb",
        "variables/variables.data-00000-of-00001",
        "variables/variables.index",
    ]
    assert (artifact / "assets/genres.txt").read_text().splitlines() == list(synthetic_ratings().genre_vocabulary)
    for path in [artifact, *artifact.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644)
    assert [path.name for path in artifact.parent.iterdir()] == ["1"]


def test_provenance_and_parity(manifest: Manifest) -> None:
    provenance = manifest.provenance
    assert provenance["created"] == "2024-05-06T07:08:09+00:00"
    assert provenance["dataset"]["sha256"] == synthetic_ratings().sha256
    assert set(provenance["baseline_rmse"]) == {"global_mean", "user_film_bias"}
    assert provenance["held_out_rmse"] > 0
    assert set(manifest.parity) == set(manifest.signatures)
    assert all(entry["cases"] and entry["max_relative_error"] < 1e-5 for entry in manifest.parity.values())
    (epoch,) = provenance["history"]
    assert epoch["epoch"] == 1 and epoch["held_out_rmse"] == provenance["held_out_rmse"]


def test_weights_are_optional_on_the_wire(artifact: Path) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((artifact / "saved_model.pb").read_bytes())
    for name in ("lookup", "lookup_tpu_tensor_core"):
        definition = saved.meta_graphs[0].signature_def[name]
        assert sorted(definition.defaults) == ["genres__weights", "recent_films__weights"]
        assert all(tensor.tensor_shape.dim[0].size == 0 for tensor in definition.defaults.values())
        assert sorted(definition.inputs) == sorted(lookup_inputs())
        assert definition.inputs["user_id"].name == f"{name}_user_id:0"
    assert sorted(saved.meta_graphs[0].signature_def["serving_default"].inputs) == sorted(predict_inputs())


def test_a_session_may_leave_weights_out(artifact: Path, signatures: Any) -> None:
    # Runs the graph as TensorFlow Serving does: feeds and fetches are the tensor names of the SignatureDef.
    from loadtest.foreign.frameworks import tf

    inputs = predict_inputs()
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        definitions = tf.compat.v1.saved_model.load(session, ["serve"], str(artifact)).signature_def
        found = {}
        for name in ("lookup", "lookup_tpu_tensor_core"):
            definition = definitions[name]
            fetches = {key: info.name for key, info in definition.outputs.items()}
            found[name] = session.run(fetches, {definition.inputs[key].name: value for key, value in inputs.items()})
    for name, got in found.items():
        wanted = signatures[name](lookup_inputs())
        assert set(got) == set(wanted)
        for key, vectors in wanted.items():
            np.testing.assert_allclose(got[key], vectors, **TOLERANCE)


def test_the_cpu_lookup_is_tensorflows_own(artifact: Path, manifest: Manifest, signatures: Any) -> None:
    from loadtest.foreign.frameworks import tf

    tables = {name: table[np.arange(table.shape[0])] for name, table in read_tables(artifact, manifest).items()}
    entry = manifest.signatures["lookup"]
    for asked in CaseWriter(manifest, entry, {}, dict.fromkeys(entry.features, "int64")).lookup_cases():
        if asked.refused:
            continue
        got, case = signatures["lookup"](asked.inputs(entry)), asked.features
        for feature in ("genres", "recent_films"):
            table, ids = tables[manifest.features[feature].table], case[feature]
            assert isinstance(ids, RaggedIds)
            weights = np.ones(len(ids.values), np.float32) if ids.weights is None else ids.weights
            # safe_embedding_lookup_sparse drops weights that are not positive, so rows with such weights are compared
            # only with the oracle.
            lowest = [weights[a:b].min(initial=1) for a, b in zip(ids.row_splits[:-1], ids.row_splits[1:], strict=True)]
            is_positive = np.array(lowest, np.float32) > 0
            values, row_weights = (
                tf.RaggedTensor.from_row_splits(part, ids.row_splits).to_sparse() for part in (ids.values, weights)
            )
            theirs = tf.nn.safe_embedding_lookup_sparse(
                tf.constant(table), values, row_weights, combiner="mean"
            ).numpy()
            # safe_embedding_lookup_sparse drops empty rows at the end; the served lookup must keep them.
            assert got[feature].shape == (len(ids.row_splits) - 1, table.shape[1])
            rows = np.flatnonzero(is_positive[: len(theirs)])
            np.testing.assert_allclose(got[feature][rows], theirs[rows], **TOLERANCE)
            wanted = oracle.looked_up(table, entry.features[feature], ids)
            np.testing.assert_allclose(got[feature], wanted, **TOLERANCE)
        for feature in ("user_id", "film_id", "occupation"):
            table = tables[manifest.features[feature].table]
            assert np.array_equal(got[feature], table[case[feature]])


def test_features_of_the_cpu_lookup_may_differ_in_rows(signatures: Any) -> None:
    both = signatures["lookup"](lookup_inputs())
    got = signatures["lookup"](lookup_inputs(user_id=[2], genres__row_splits=[0, 0, 2, 2, 2]))
    assert {name: len(vectors) for name, vectors in got.items()} == {
        "user_id": 1,
        "film_id": 2,
        "occupation": 2,
        "genres": 4,
        "recent_films": 2,
    }
    assert np.array_equal(got["genres"][1], both["genres"][0])


def test_the_devices_divide_a_mean_differently_below_a_weight_of_1(signatures: Any) -> None:
    inputs = lookup_inputs(genres__weights=[0.25, 0.25])
    cpu, tensor_core = signatures["lookup"](inputs), signatures["lookup_tpu_tensor_core"](inputs)
    np.testing.assert_allclose(tensor_core["genres"], cpu["genres"] * 0.5, **TOLERANCE)
    np.testing.assert_allclose(tensor_core["recent_films"], cpu["recent_films"], **TOLERANCE)


@pytest.mark.parametrize("rows", [0, 1, 2, 4])
def test_a_padded_batch_is_its_rows_run_alone(signatures: Any, rows: int) -> None:
    run = signatures["lookup_tpu_tensor_core"]
    batch = run(_rows(np.arange(rows)))
    for row in range(rows):
        alone = run(_rows(np.arange(row, row + 1)))
        for name, vectors in batch.items():
            np.testing.assert_allclose(vectors[row], alone[name][0], **TOLERANCE)
    assert all(len(vectors) == rows for vectors in batch.values())


@pytest.mark.parametrize("name", ["lookup", "lookup_tpu_tensor_core"])
@pytest.mark.parametrize(
    "changed",
    [
        {"user_id": [1, 61]},
        {"user_id": [-1, 1]},
        {"genres__values": [99, 0]},
        {"recent_films__values": [5, -1, 7]},
        {"genres__weights": [1.0]},
        {"genres__row_splits": [0, 1, 1]},
        {"genres__row_splits": [0, 3, 2]},
        {"recent_films__row_splits": [1, 3, 3]},
    ],
    ids=lambda changed: next(iter(changed.items()))[0] + str(next(iter(changed.values()))),
)
def test_bad_ids_weights_and_splits_are_errors_of_the_graph(
    signatures: Any, name: str, changed: dict[str, Any]
) -> None:
    from loadtest.foreign.frameworks import tf

    with pytest.raises(tf.errors.InvalidArgumentError):
        signatures[name](lookup_inputs(**changed))


def test_the_padded_lookup_neither_cuts_nor_overflows(signatures: Any) -> None:
    from loadtest.foreign.frameworks import tf

    run = signatures["lookup_tpu_tensor_core"]
    ten = {"recent_films__values": [1] * 10, "recent_films__row_splits": [0, 10, 10]}
    one_more = {"recent_films__values": [1] * 11, "recent_films__row_splits": [0, 11, 11]}
    run(lookup_inputs(**ten))
    signatures["lookup"](lookup_inputs(**one_more))
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 10 ids"):
        run(lookup_inputs(**one_more))
    with pytest.raises(tf.errors.InvalidArgumentError, match="largest batch size"):
        run(_rows(np.arange(5)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of rows"):
        run(lookup_inputs(film_id=[1]))


def test_the_padded_lookup_is_compiled_with_static_shapes(artifact: Path) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((artifact / "saved_model.pb").read_bytes())
    compiled = [f for f in saved.meta_graphs[0].graph_def.library.function if f.attr["_XlaMustCompile"].b]
    leading = set()
    for function in compiled:
        for shapes in function.arg_attr.values():
            for shape in shapes.attr["_output_shapes"].list.shape:
                assert all(dim.size > 0 for dim in shape.dim)
                leading |= {shape.dim[0].size} if shape.dim else set()
    assert len(compiled) == len(BATCH_SIZES)
    assert leading == set(BATCH_SIZES)


def test_examples_mean_what_tensors_mean(artifact: Path, manifest: Manifest, signatures: Any) -> None:
    genres = (artifact / manifest.vocabularies["genres"].file).read_text().splitlines()
    jobs = (artifact / manifest.vocabularies["occupation"].file).read_text().splitlines()
    examples = [
        _example(user_id=[1], film_id=[3], occupation=[jobs[0]], genres=[genres[1], genres[0]], recent_films=[5, 5, 7]),
        _example(user_id=[2], occupation=["astronaut"]),  # no film; the occupation is not in the vocabulary
        _example(genres=["no such genre"]),
        b"",
    ]
    got = signatures["serve_examples"]({"examples": examples})["rating"]
    two_rows = signatures["serving_default"](predict_inputs())["rating"]
    np.testing.assert_allclose(got[:2], two_rows, **TOLERANCE)
    unknown = predict_inputs(
        user_id=[0, 0],
        film_id=[0, 0],
        occupation=[0, 0],
        genres__values=[0],
        genres__row_splits=[0, 1, 1],
        recent_films__values=[],
        recent_films__row_splits=[0, 0, 0],
    )
    np.testing.assert_allclose(got[2:], signatures["serving_default"](unknown)["rating"], **TOLERANCE)


def test_predictions_match_the_trained_model_and_lie_in_the_range_of_ratings(rating_run: Path, signatures: Any) -> None:
    from loadtest.foreign.frameworks import tf
    from movielens.loop import restore_weights
    from movielens.model import RatingModel
    from movielens.run import CHECKPOINTS_FOLDER, RATING_RANGE, Run

    run = Run.read(rating_run)
    model = RatingModel(run.spec, run.config, mean_rating=0.0, rating_range=RATING_RANGE, table_optimizer=None)
    restore_weights(rating_run / CHECKPOINTS_FOLDER, model)
    inputs = predict_inputs()
    features = {
        name: tf.RaggedTensor.from_row_splits(
            tf.constant(inputs[f"{name}__values"], tf.int64), tf.constant(inputs[f"{name}__row_splits"], tf.int64)
        )
        if f"{name}__values" in inputs
        else tf.constant(inputs[name], tf.int64)
        for name in ("user_id", "film_id", "occupation", "genres", "recent_films")
    }
    got = signatures["serving_default"](inputs)["rating"]
    np.testing.assert_allclose(got, model.tower.clipped(model.embedding(features)), **TOLERANCE)
    assert ((got >= 1) & (got <= 5)).all()


def test_inspect(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(artifact)]) == 0
    text = capsys.readouterr().out
    for word in ("film", "81 x 32", "lookup_tpu_tensor_core", "synthetic", "genres"):
        assert word in text


def _truncate(artifact: Path) -> None:
    path = artifact / "variables/variables.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-1])


def _edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(artifact: Path) -> None:
        path = artifact / MANIFEST_PATH
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return edit


def _set_nan(artifact: Path) -> None:
    manifest = manifest_of(artifact)
    with (artifact / manifest.tables["film"].file).open("r+b") as file:
        file.seek(manifest.tables["film"].offset)
        file.write(np.float32(np.nan).tobytes())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncate, "bytes, the manifest says"),
        (lambda artifact: (artifact / "fingerprint.pb").unlink(), "fingerprint.pb has no bytes"),
        (lambda artifact: (artifact / "extra").write_text("x"), "nothing of it"),
        (lambda artifact: (artifact / "assets/genres.txt").write_text("a\n" * 25 + "a"), "distinct"),
        (_edit(lambda data: data["tables"]["film"].update(offset=4)), "the index says"),
        (_edit(lambda data: data["tables"]["film"].update(crc32c=4)), "the index says"),
        (_edit(lambda data: data["tables"]["film"].update(variable="tables/x")), "has no 'tables/x'"),
        (_edit(lambda data: data["vocabularies"]["genres"].update(size=5)), "not 5"),
        (_set_nan, "NaN"),
    ],
    ids=["truncated", "missing", "extra", "doubled", "offset", "crc", "variable", "vocabulary size", "nan"],
)
def test_a_damaged_artifact_is_noticed(
    artifact: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    copy = shutil.copytree(artifact, tmp_path / "1")
    damage(copy)
    manifest = manifest_of(copy)
    with pytest.raises(ExportError, match=message):
        check_integrity(copy, manifest)
    assert main(["verify", str(copy)]) == 1


def test_an_unreadable_index_is_named(artifact: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(artifact, tmp_path / "1")
    path = copy / "variables/variables.index"
    path.write_bytes(b"\0" * path.stat().st_size)
    manifest = manifest_of(copy)
    with pytest.raises(ArtifactError, match="not a checkpoint index"):
        check_integrity(copy, manifest)


def test_an_interrupted_run_is_not_exported(rating_run: Path, tmp_path: Path) -> None:
    from movielens.run import Run

    copy = shutil.copytree(rating_run, tmp_path / "run")
    run = Run.read(copy)
    dataclasses.replace(run, history=(*run.history, run.history[0])).write(copy)
    with pytest.raises(ExportError, match="resume"):
        export(copy, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def _rows(rows: Array) -> dict[str, Any]:
    # Request row r has user r + 1, film r + 2, r % 4 genres and one recent film.
    counts = rows % 4
    return {
        "user_id": rows + 1,
        "film_id": rows + 2,
        "occupation": rows % 3,
        "genres__values": np.concatenate([np.arange(1, 1 + n) for n in counts] or [[]]),
        "genres__row_splits": np.r_[0, np.cumsum(counts)],
        "genres__weights": [],
        "recent_films__values": rows + 3,
        "recent_films__row_splits": np.arange(len(rows) + 1),
        "recent_films__weights": [],
    }


def _example(**fields: list[Any]) -> bytes:
    from loadtest.foreign.frameworks import tf

    def feature(values: list[Any]) -> Any:
        if isinstance(values[0], str):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode() for value in values]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    features = tf.train.Features(feature={name: feature(values) for name, values in fields.items()})
    serialized: bytes = tf.train.Example(features=features).SerializeToString()
    return serialized
