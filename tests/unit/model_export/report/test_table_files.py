"""Reads tables from the toy model, from a foreign SavedModel's variables, and from files that are damaged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from model_export.report.table_files import SlicedRows, declared_tables, map_table, matrix_variables
from model_export.statistics.table_health import table_health
from service.artifact.manifest import Manifest
from service.errors import ArtifactError
from tests.toy_model import SHARD, toy_tables, write_bundle


def test_declared_tables_are_read_as_they_lie(artifact: Path) -> None:
    manifest = Manifest.read(artifact)
    assert manifest is not None
    tables = declared_tables(manifest)
    assert [(table.name, table.features) for table in tables] == [
        ("user", ("user",)),
        ("tag", ("tags", "tags_sqrtn", "tags_sum")),
    ]
    for table in tables:
        np.testing.assert_array_equal(map_table(artifact, table)[:], toy_tables()[table.name])


def test_variables_of_a_foreign_model_are_its_float_matrices(tmp_path: Path) -> None:
    (tmp_path / "variables").mkdir()
    wide = np.arange(12, dtype=np.float64).reshape(4, 3)
    tensors: dict[str, np.ndarray] = {
        "emb/.ATTRIBUTES/VARIABLE_VALUE": np.ones((2, 3), np.float32),
        "wide": wide,
        "bias": np.ones(3, np.float32),
        "ids": np.ones((2, 2), np.int64),
    }
    write_bundle(tmp_path / "variables" / "variables", tensors)
    found = matrix_variables(tmp_path)
    assert [(t.name, t.vocabulary_size, t.embedding_dim, t.dtype) for t in found] == [
        ("wide", 4, 3, "float64"),
        ("emb", 2, 3, "float32"),
    ]
    np.testing.assert_array_equal(map_table(tmp_path, found[0])[:], wide)


def test_a_model_without_variables_has_none(tmp_path: Path) -> None:
    assert matrix_variables(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float8"}, "float8 are not read"),
        ({"nbytes": 12}, "12 bytes do not hold 5 x 2 of float32"),
        ({"offset": 10_000}, "ends at byte 10,040"),
        ({"file": "variables/nowhere"}, "cannot read variables/nowhere"),
    ],
)
def test_what_can_not_be_read_says_why(artifact: Path, change: dict[str, object], message: str) -> None:
    manifest = Manifest.read(artifact)
    assert manifest is not None
    with pytest.raises(ArtifactError, match=message):
        map_table(artifact, dataclasses.replace(declared_tables(manifest)[0], **change))  # type: ignore[arg-type]


def test_a_shard_that_was_cut_is_refused_before_it_is_mapped(artifact: Path) -> None:
    manifest = Manifest.read(artifact)
    assert manifest is not None
    (artifact / SHARD).write_bytes((artifact / SHARD).read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="it ends at byte"):
        map_table(artifact, max(declared_tables(manifest), key=lambda table: table.offset))


def test_slices_read_like_the_whole() -> None:
    whole = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    sliced = SlicedRows([whole[:4], whole[4:5], whole[5:]])
    assert sliced.shape == whole.shape and sliced.dtype == whole.dtype
    np.testing.assert_array_equal(sliced[2:9], whole[2:9])
    ids = np.array([9, 0, 4, 4, 3])
    np.testing.assert_array_equal(sliced[ids], whole[ids])
    assert table_health(sliced) == table_health(whole)


@pytest.mark.tf
def test_a_variable_that_tensorflow_saved_in_slices(tmp_path: Path, tf: object) -> None:
    from model_export.tensorflow_setup import tf as tensorflow

    v1 = tensorflow.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("emb", [10, 2], partitioner=v1.fixed_size_partitioner(3))
        session.run(v1.global_variables_initializer())
        whole = session.run(tensorflow.convert_to_tensor(variable))
        v1.train.Saver().save(session, str(tmp_path / "variables" / "variables"), write_meta_graph=False)
    (found,) = matrix_variables(tmp_path)
    assert (found.name, found.vocabulary_size, found.embedding_dim, found.nbytes) == ("emb", 10, 2, 80)
    assert found.slices == 3
    np.testing.assert_array_equal(map_table(tmp_path, found)[:], whole)
