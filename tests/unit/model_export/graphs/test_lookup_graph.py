"""Graphs of lookups, and the MetaGraphs of a SavedModel."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.graphs.source import lookup_entry
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from service.artifact.manifest import LookupDevice
from tests.unit.model_export.late import Late, tf

pytestmark = pytest.mark.tf

build_lookup = Late("model_export.graphs.lookup_graph", "build_lookup")
vocabulary_tables = Late("model_export.graphs.lookup_graph", "vocabulary_tables")
merge_meta_graphs = Late("model_export.graphs.tpu_graph", "merge_meta_graphs")

TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)
SPEC = ModelSpec(
    (TableSpec("t", 7, 2),),
    (
        FeatureSpec("bag", "t", is_ragged=True, max_ids_per_row=3, on_bad_id="drop"),
        FeatureSpec("word", "t", vocabulary=VocabularySpec(("x", "y"), 1, num_oov_buckets=2)),
        FeatureSpec("steps", "t", is_ragged=True, max_sequence_length=2),
    ),
)
INPUTS = {
    "bag__values": [1, -1, 3, 6],
    "bag__row_splits": [0, 3, 4],
    "word": ["y", "x"],
    "steps__values": [5, 4, 3],
    "steps__row_splits": [0, 3, 3],
}
# Sums of table rows: bag 1 + 3, and 6; word 2, and 1. steps is a sequence: rows 5 and 4, and an empty one.
EXPECTED = {
    "bag": [[4, 5], [12, 13]],
    "word": [[4, 5], [2, 3]],
    "steps": [[[10, 11], [8, 9]], [[0, 0], [0, 0]]],
}


def placed(parts: int) -> Any:
    """Returns the table as one variable, or as several that are its parts."""
    get_variable = tf.compat.v1.get_variable
    if parts == 1:
        return get_variable("t", initializer=TABLE)
    return [get_variable(f"part_{i}", initializer=rows) for i, rows in enumerate(np.array_split(TABLE, parts))]


@pytest.mark.parametrize("device", ["cpu", "tpu_tensor_core"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("is_resource", [True, False])
def test_a_lookup_in_a_v1_graph(tmp_path: Path, device: LookupDevice, parts: int, is_resource: bool) -> None:
    file = tmp_path / "word.txt"
    file.write_text("x\ny\n")
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session, v1.variable_scope("", use_resource=is_resource):
        entry = lookup_entry(SPEC, device, batch_sizes=(4,))
        vocabularies = vocabulary_tables(SPEC, {"word": file})
        definition = build_lookup(entry, SPEC, {"t": placed(parts)}, vocabularies).signature_def("s")
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        (asset,) = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
        assert session.run(asset) == str(file).encode()
        feeds = {definition.inputs[name].name: value for name, value in INPUTS.items()}
        feeds[definition.inputs["bag__weights"].name] = tf.make_ndarray(definition.defaults["bag__weights"])
        got = session.run({name: info.name for name, info in definition.outputs.items()}, feeds)
    assert definition.inputs["bag__values"].name == "s_bag__values:0"
    assert list(definition.defaults) == ["bag__weights"]
    assert {name: vectors.tolist() for name, vectors in got.items()} == EXPECTED
    assert definition.inputs["bag__values"].dtype == (tf.int32 if device == "tpu_tensor_core" else tf.int64)


@pytest.mark.parametrize("device", ["cpu", "tpu_tensor_core"])
def test_an_id_that_its_weight_leaves_out_is_not_checked(device: LookupDevice) -> None:
    bag = FeatureSpec("bag", "t", is_ragged=True, max_ids_per_row=3, on_bad_id="error", on_nonpositive_weight="drop")
    spec = ModelSpec(SPEC.tables, (bag,))
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        entry = lookup_entry(spec, device, batch_sizes=(4,))
        assert entry.features["bag"].on_nonpositive_weight == "drop"
        definition = build_lookup(entry, spec, {"t": placed(1)}).signature_def("s")
        session.run(v1.global_variables_initializer())

        def looked_up(*weights: float) -> Any:
            values = {"bag__values": [1, 99, -5, 3], "bag__row_splits": [0, 2, 4], "bag__weights": list(weights)}
            feeds = {definition.inputs[name].name: value for name, value in values.items()}
            return session.run(definition.outputs["bag"].name, feeds).tolist()

        assert looked_up(2, 0, -1, 1) == [[2, 3], [6, 7]]
        for place in (1, 2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="an id is"):
                looked_up(*(1 if place == at or at in (0, 3) else 0 for at in range(4)))


def test_keys_need_a_vocabulary_table() -> None:
    with pytest.raises(ValueError, match=r"features \['word'\] take keys"):
        build_lookup(lookup_entry(SPEC, "cpu"), SPEC, {"t": TABLE})


@pytest.mark.parametrize("device", ["cpu", "tpu_tensor_core"])
def test_a_mean_may_divide_either_way_on_either_device(device: LookupDevice) -> None:
    spec = ModelSpec((TableSpec("t", 7, 2),), (FeatureSpec("bag", "t", is_ragged=True, max_ids_per_row=3),))
    entry = lookup_entry(spec, device, batch_sizes=(4,))
    inputs = {"bag__values": [1, 3], "bag__row_splits": [0, 2], "bag__weights": [0.25, 0.25]}
    for divisor, expected in (("sum_weights", [[4, 5]]), ("at_least_one", [[2, 2.5]])):
        changed = replace(entry, features={"bag": replace(entry.features["bag"], mean_divisor=divisor)})
        lookup = build_lookup(changed, spec, {"t": TABLE})
        specs = lookup.input_specs()
        tensors = {name: _constant(value, specs[name]) for name, value in inputs.items()}
        assert lookup.outputs(tensors)["bag"].numpy().tolist() == expected


@pytest.mark.parametrize("policy", ["error", "truncate"])
def test_the_cpu_lookup_keeps_to_a_limit_that_a_manifest_sets(policy: str) -> None:
    spec = ModelSpec((TableSpec("t", 7, 2, "sum"),), (FeatureSpec("bag", "t", is_ragged=True),))
    entry = lookup_entry(spec, "cpu")
    limited = replace(entry.features["bag"], max_ids_per_row=2, on_too_many_ids=policy)
    lookup = build_lookup(replace(entry, features={"bag": limited}), spec, {"t": TABLE})
    inputs = {"bag__values": [1, 3, 99], "bag__row_splits": [0, 3], "bag__weights": []}
    tensors = {name: _constant(value, lookup.input_specs()[name]) for name, value in inputs.items()}
    if policy == "truncate":
        assert lookup.outputs(tensors)["bag"].numpy().tolist() == [[8, 10]]
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="a row has more than 2 ids"):
        lookup.outputs(tensors)


def _constant(value: Any, spec: Any) -> Any:
    return tf.constant(value, spec.dtype)


def save(folder: Path, *names: str, rows: int = 2, tags: tuple[str, ...] = ("serve",)) -> Any:
    """Saves a model of TensorFlow 1 with variables of these names; returns its MetaGraphDef."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        total = sum(tf.reduce_sum(v1.get_variable(name, [rows, 3], use_resource=True)) for name in names)
        signature = v1.saved_model.predict_signature_def({"x": v1.placeholder(tf.float32, [], "x")}, {"y": total})
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, tags, {"serving_default": signature})
        builder.save()
    return saved_model(folder).meta_graphs[0]


def saved_model(folder: Path) -> Any:
    """Returns a folder's SavedModel message."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    return SavedModel.FromString((folder / "saved_model.pb").read_bytes())


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saves a {serve} SavedModel with variables a and b; tests must not change it."""
    folder = tmp_path_factory.mktemp("serve") / "1"
    save(folder, "a", "b")
    return folder


@pytest.fixture
def folder(serve: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(serve, tmp_path / "1"))


def test_a_meta_graph_joins_beside_the_one_there(folder: Path, serve: Path, tmp_path: Path) -> None:
    other = save(tmp_path / "other", "a", "b", tags=("serve", "tpu"))
    merge_meta_graphs(folder, other)
    assert list(saved_model(folder).meta_graphs) == [*saved_model(serve).meta_graphs, other]
    assert sorted(path.name for path in folder.iterdir()) == ["saved_model.pb", "variables"]
    for tags in (["serve"], ["serve", "tpu"]):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.saved_model.loader.load(session, tags, str(folder))
            read = session.run("a/Read/ReadVariableOp:0")
        assert read.tolist() == tf.train.load_checkpoint(str(serve / "variables/variables")).get_tensor("a").tolist()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda path: save(path, "a", "b"), r"has a MetaGraph tagged \{serve\} already"),
        (
            lambda path: save(path, "a", "c", tags=("serve", "tpu")),
            r"do not restore the same variables: only \{serve\} has \['b'\], only \{serve, tpu\} has \['c'\]",
        ),
        (
            lambda path: save(path, "a", tags=("tpu",)),
            r"only \{serve\} has \['b'\], only \{tpu\} has \[\]",
        ),
        (
            lambda path: save(path, "a", "b", rows=4, tags=("serve", "tpu")),
            r"variables of different shapes: \[\('a', 'float32\(2, 3\)'\), \('a', 'float32\(4, 3\)'\), \('b', ",
        ),
    ],
    ids=["the same tags", "other variables", "fewer variables", "other shapes"],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    folder: Path, serve: Path, tmp_path: Path, other: Callable[[Path], Any], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        merge_meta_graphs(folder, other(tmp_path / "other"))
    assert (folder / "saved_model.pb").read_bytes() == (serve / "saved_model.pb").read_bytes()


def test_an_asset_that_is_not_there_is_refused(folder: Path, tmp_path: Path) -> None:
    other = save(tmp_path / "other", "a", "b", tags=("serve", "tpu"))
    other.asset_file_def.add().filename = "words.txt"
    with pytest.raises(ExportError, match=r"lacks assets of the other MetaGraph: words\.txt"):
        merge_meta_graphs(folder, other)
    (folder / "assets").mkdir()
    (folder / "assets" / "words.txt").write_text("a\n")
    merge_meta_graphs(folder, other)


def test_a_folder_without_savedmodel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"is no SavedModel: it has no saved_model\.pb"):
        merge_meta_graphs(tmp_path, tf.compat.v1.MetaGraphDef())
