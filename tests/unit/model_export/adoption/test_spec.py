"""Reads spec files for `adopt`: the documented example is valid, and a mistake is reported with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_export.adoption.spec import SPEC_EXAMPLE, candidate_lines, find_variable, read_spec
from model_export.errors import ExportError
from service.artifact.bundle import BundleEntry


def entry(*shape: int, dtype: str = "float32") -> BundleEntry:
    """Returns the entry that a variable of this shape has in the index of a checkpoint."""
    return BundleEntry(dtype, shape, Path("variables/variables.data-00000-of-00001"), 0, 4, 0)


VARIABLES = {
    "embedding/film/.ATTRIBUTES/VARIABLE_VALUE": entry(30, 4),
    "tower/film/.ATTRIBUTES/VARIABLE_VALUE": entry(2, 2),
    "user": entry(50, 4),
    "bias": entry(4),
    "half": entry(4, 4, dtype="float16"),
    "counts": entry(2, 4, dtype="int32"),
}


def read(folder: Path, text: str) -> object:
    """Writes this text as a spec file and reads it."""
    path = folder / "spec.toml"
    path.write_text(text)
    return read_spec(path, VARIABLES)


def test_the_example_of_the_help_holds(tmp_path: Path) -> None:
    (tmp_path / "genres.txt").write_text("drama\ncomedy\n")
    path = tmp_path / "spec.toml"
    path.write_text(SPEC_EXAMPLE)
    spec = read_spec(path, VARIABLES)
    assert spec.variables == {"film": "embedding/film/.ATTRIBUTES/VARIABLE_VALUE"}
    film, genres = spec.model.table("film"), spec.model.feature("genres")
    assert (film.vocabulary_size, film.embedding_dim) == (30, 4)
    assert genres.vocabulary is not None and genres.vocabulary.keys == ("drama", "comedy") and genres.sends_rows
    assert genres.vocabulary.first_id == 1 and genres.vocabulary.oov_id == 0
    assert (genres.on_bad_id, genres.max_ids_per_row) == ("drop", 8)
    assert spec.fitting["serving_default"].outputs == {"film_id": "output_0"}
    assert spec.fitting["serving_default"].inputs == {"film_id": {"ids": "film"}}
    assert spec.added == ("cpu", "tpu_tensor_core") and spec.batch_sizes == (1, 8, 64)


def test_what_is_left_out_is_decided_later(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('[tables.user]\n[features.a]\ntable = "user"\n')
    spec = read_spec(path, VARIABLES)
    assert spec.added is None and not spec.fitting
    assert spec.model.table("user").combiner == "mean"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tables.user\n", "cannot read"),
        ("[table.user]\n", "table is no key of a spec; the keys are tables, features"),
        ("[tables.user]\nrows = 3\n", "tables.user.rows is no key"),
        ("[tables.user]\n[features.a]\ntable = 'user'\nlength = 3\n", "features.a.length is no key"),
        ("[tables.user]\n[features.a]\ntable = 'user'\n[signatures.s]\nx = 1\n", "signatures.s.x is no key"),
        ("[tables.user]\n[features.a]\ntable = 'user'\n[lookup]\nx = 1\n", "lookup.x is no key"),
        ("[tables.user]\n[features.a]\ntable = 'user'\n[lookup]\ndevice = 'gpu'\n", "lookup_device is 'gpu'"),
        ("[tables.user]\n[features.a]\n", "features.a: .*table"),
        ("[tables.user]\n[features.a]\ntable = 'users'\n", "uses table 'users'"),
        ("[tables.user]\n", "declares 1 tables and 0 features"),
        ("tables = 3\n", "tables is not a table of tables"),
        ("[tables.user]\ncombiner = 'max'\n[features.a]\ntable = 'user'\n", "combiner is 'max'"),
        ("[tables.user]\n[features.a]\ntable = 'user'\nvocabulary = { file = 'none.txt' }\n", "none.txt"),
        ("[tables.user]\n[features.a]\ntable = 'user'\nvocabulary = { path = 'x' }\n", "vocabulary.path is no key"),
        ("[tables.bias]\n[features.a]\ntable = 'bias'\n", r"'bias' is float32 \[4\]; a table is a matrix"),
        ("[tables.counts]\n[features.a]\ntable = 'counts'\n", "'counts' is int32 .* float32 or float16 or bfloat16"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        read(tmp_path, text)


def test_variables_are_found_by_the_end_of_their_name_where_that_is_one() -> None:
    assert find_variable("embedding/film", VARIABLES) == "embedding/film/.ATTRIBUTES/VARIABLE_VALUE"
    assert find_variable("user", VARIABLES) == "user"
    with pytest.raises(ExportError, match="may be any of .*embedding/film.*tower/film"):
        find_variable("film", VARIABLES)
    with pytest.raises(ExportError, match=r"Candidates:\n  table\? user  \[50, 4\] float32\n"):
        find_variable("item", VARIABLES)


def test_candidates_are_listed_tables_first_the_largest_first() -> None:
    names = [line.split("  ")[-2].split()[-1] for line in candidate_lines(VARIABLES)]
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert names == ["user", "embedding/film" + suffix, "half", "tower/film" + suffix, "counts", "bias"]
