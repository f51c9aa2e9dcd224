"""MetaGraphs that share a `variables/` folder do share their variables, or are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_export.errors import ExportError

pytestmark = pytest.mark.tf


def save(folder: Path, *names: str, rows: int = 2, tags: tuple[str, ...] = ("serve",)) -> Any:
    """Saves a model of TensorFlow 1 with variables of these names; returns its MetaGraphDef."""
    from model_export.tensorflow_setup import tf

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
    from model_export.graphs.tpu_graph import merge_meta_graphs
    from model_export.tensorflow_setup import tf

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
    from model_export.graphs.tpu_graph import merge_meta_graphs

    with pytest.raises(ExportError, match=message):
        merge_meta_graphs(folder, other(tmp_path / "other"))
    assert (folder / "saved_model.pb").read_bytes() == (serve / "saved_model.pb").read_bytes()


def test_an_asset_that_is_not_there_is_refused(folder: Path, tmp_path: Path) -> None:
    from model_export.graphs.tpu_graph import merge_meta_graphs

    other = save(tmp_path / "other", "a", "b", tags=("serve", "tpu"))
    other.asset_file_def.add().filename = "words.txt"
    with pytest.raises(ExportError, match=r"lacks assets of the other MetaGraph: words\.txt"):
        merge_meta_graphs(folder, other)
    (folder / "assets").mkdir()
    (folder / "assets" / "words.txt").write_text("a\n")
    merge_meta_graphs(folder, other)


def test_a_folder_without_savedmodel_is_refused(tmp_path: Path) -> None:
    from model_export.graphs.tpu_graph import merge_meta_graphs
    from model_export.tensorflow_setup import tf

    with pytest.raises(ExportError, match=r"is no SavedModel: it has no saved_model\.pb"):
        merge_meta_graphs(tmp_path, tf.compat.v1.MetaGraphDef())
