"""The specs of an adopted model: names and policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_export.adoption.key_graph import (
    NO_PART,
    Fixed,
    IdPolicy,
    Known,
    NotRead,
    Outcome,
    Piece,
    Shifted,
    Within,
    find_policy,
)
from model_export.adoption.spec import (
    SPEC_EXAMPLE,
    candidate_lines,
    find_variable,
    read_spec,
    table_names,
    unique,
    valid,
)
from model_export.errors import ExportError
from service.artifact.bundle import BundleEntry
from tests.unit.model_export.late import late

with late():
    from model_export.adoption.roles import Roles, feature_name

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.mark.parametrize(
    ("key", "variable", "name"),
    [
        ("_all_variables/4" + VALUE, "user_embedding/embeddings", "user_embedding"),
        ("_all_variables/4" + VALUE, "ranker/items/embeddings", "items"),
        ("layers/0/variables/1" + VALUE, "", "variables"),
        ("user" + VALUE, "Variable_7", "user"),
        ("embedding/film" + VALUE, "Variable", "film"),
        ("dnn/input_from_feature_columns/a_b_shared_embedding", "", "a_b_shared_embedding"),
        ("words" + VALUE, "2nd words", "n2nd_words"),
    ],
)
def test_a_table_is_named_by_what_the_program_called_it(key: str, variable: str, name: str) -> None:
    assert table_names([key], {key: variable}) == {key: name}


def test_two_tables_of_one_name_are_told_apart() -> None:
    variables = {"a": "embeddings", "b": "embeddings"}
    assert table_names(["b", "a"], variables) == {"a": "embeddings", "b": "embeddings_2"}
    assert unique("x", {"x", "x_2"}) == "x_3"


def test_names_hold_letters_digits_and_underscores() -> None:
    assert valid("weiß/1 a") == "weiß_1_a" or valid("weiß/1 a").isidentifier()
    assert valid("") == "table"


@pytest.mark.parametrize(
    ("ids", "splits", "name"),
    [
        ("user", None, "user"),
        ("tag_values", "tag_splits", "tag"),
        ("genres__values", "genres__row_splits", "genres"),
        ("values", "splits", "values"),
    ],
)
def test_a_feature_is_named_by_its_inputs(ids: str, splits: str | None, name: str) -> None:
    assert feature_name(Roles(ids, splits)) == name


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


V = 10
LEAST, MOST = -(2**31), 2**31 - 1
INSIDE = Piece((0, V - 1), (Shifted(),))


def outside(below: Known, beyond: Known) -> list[Piece]:
    """Returns pieces of two values for ids below 0 and from V on, and of the id itself for the ids of the table."""
    return [Piece((LEAST, -1), (below,)), INSIDE, Piece((V, MOST), (beyond,))]


@pytest.mark.parametrize(
    ("pieces", "dropped", "policy"),
    [
        (outside(Shifted(), Shifted()), (), IdPolicy("error")),
        (outside(Shifted(), Shifted()), ((LEAST, -1), (V, MOST)), IdPolicy("drop")),
        (outside(Shifted(), Shifted()), ((LEAST, -1),), IdPolicy("drop_negative")),
        (outside(Fixed(0), Fixed(V - 1)), (), IdPolicy("clamp")),
        (outside(Fixed(4), Fixed(4)), (), IdPolicy("default_row", 4)),
        (
            [
                Piece((LEAST, -V - 1), (Shifted(V),)),
                Piece((-V, -1), (Shifted(V),)),
                INSIDE,
                Piece((V, MOST), (Shifted(),)),
            ],
            (),
            IdPolicy("wrap"),
        ),
        (outside(Within(-9, -1, "FloorDiv"), Within(V, 99, "FloorDiv")), (), IdPolicy("error")),
        # Ids of no part of a table are refused, unless the graph drops them before it computes the part.
        (outside(NO_PART, NO_PART), (), IdPolicy("error")),
        (outside(NO_PART, NO_PART), ((LEAST, -1),), IdPolicy("drop_negative")),
    ],
)
def test_each_policy_is_told_by_its_pieces(
    pieces: list[Piece], dropped: tuple[tuple[int, int], ...], policy: IdPolicy
) -> None:
    assert find_policy(pieces, V, outcome_of(pieces, dropped)) == policy


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        # One id is retired.
        ([Piece((LEAST, -1), (Shifted(),)), Piece((0, 3), (Shifted(),)), Piece((4, 4), (Fixed(2),)),
          Piece((5, V - 1), (Shifted(),)), Piece((V, MOST), (Shifted(),))], "id 4 reads row 2"),
        # Ids count from 1.
        ([Piece((LEAST, -1), (Shifted(-1),)), Piece((0, 0), (Shifted(-1),)), Piece((1, V - 1), (Shifted(-1),)),
          Piece((V, V), (Shifted(-1),)), Piece((V + 1, MOST), (Shifted(-1),))], "id 0 is refused"),
        # Below the table row 1, beyond it row 2.
        (outside(Fixed(1), Fixed(2)), "reads row 1, and no policy"),
        (outside(Shifted(), Within(0, V - 1, "FloorMod")), "FloorMod maps several ids to one row"),
    ],
)  # fmt: skip
def test_what_no_policy_says_is_told_with_an_id(pieces: list[Piece], message: str) -> None:
    with pytest.raises(NotRead, match=message):
        find_policy(pieces, V, outcome_of(pieces, ()))


def test_a_trial_that_differs_from_the_ops_is_no_policy() -> None:
    pieces = outside(Shifted(), Shifted())
    answers = outcome_of(pieces, ())
    with pytest.raises(NotRead, match="id 9 reads row 8 in a trial; by the graph's ops it reads row 9"):
        find_policy(pieces, V, lambda key: 8 if key == 9 else answers(key))


def outcome_of(pieces: list[Piece], dropped: tuple[tuple[int, int], ...]):  # type: ignore[no-untyped-def]
    """Returns what a graph of these pieces does with an id; ids of the intervals `dropped` are dropped."""

    def outcome(key: int) -> Outcome | None:
        if any(low <= key <= high for low, high in dropped):
            return "dropped"
        (value,) = next(p.values for p in pieces if p.keys and p.keys[0] <= key <= p.keys[1])
        row = key + value.by if isinstance(value, Shifted) else value.value if isinstance(value, Fixed) else -1
        return row if 0 <= row < V else "refused"

    return outcome
