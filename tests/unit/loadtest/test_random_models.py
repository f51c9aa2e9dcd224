"""Random foreign models are reproducible, and their requests have the keys at the edges of their construction."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from loadtest.foreign import random_models as made
from loadtest.foreign.children import run_each
from loadtest.foreign.comparing import Refused, Tally, compare, difference
from loadtest.foreign.kinds import (
    Draw,
    Edges,
    InputSpec,
    Kind,
    NoKind,
    RandomRequests,
    edge_keys,
    ids,
    judged,
    padded,
    words,
)
from loadtest.foreign.models import ForeignModel, Zoo, all_models

IDS = InputSpec(np.dtype(np.int64), (-1,))


def _made(seed: int, number: int) -> made.Construction:
    found = made.construction_of(made.random_name(seed, number))
    assert found is not None
    return found


def test_a_name_alone_decides_a_model() -> None:
    assert [_made(7, number) for number in range(50)] == [_made(7, number) for number in range(50)]
    assert _made(7, 1) != _made(8, 1)
    assert made.construction_of("keras3_string_lookup") is None


def test_each_ingredient_is_drawn() -> None:
    made = [_made(1, number) for number in range(600)]
    features = [feature for one in made for feature in one.features]
    steps = Counter(type(step).__name__ for feature in features for step in feature.steps)
    assert {one.framework for one in made} == {"module", "session", "keras3", "tf_keras", "columns"}
    assert {one.tower for one in made} == {"none", "concat", "dense", "dot", "cosine"}
    assert {table.dtype for one in made for table in one.tables} == {"float32", "float16", "bfloat16", "float64"}
    assert max(table.rows for one in made for table in one.tables) >= 2**22 > 1
    assert min(table.rows for one in made for table in one.tables) <= 2
    assert any(table.parts > 1 for one in made for table in one.tables)
    assert any(feature.max_norm for feature in features)
    assert any(feature.weights for feature in features)
    assert len(steps) >= 20, steps


@pytest.mark.parametrize(
    ("steps", "last", "wanted"),
    [
        ((made.Masked(b"nan", 0, 1, made.Hashed(19)),), (0,), {b"nan", b"NAN", b"nan "}),
        ((made.Retired(417, 3),), (0,), {416, 417, 418, 3}),
        ((made.AsText(), made.Masked(b"-1", 0, 1, made.Hashed(19))), (0,), {-1}),
        ((made.Shifted(100), made.Retired(417, 3)), (0, 999), {317, 899}),
        ((made.Clipped(0, 63),), (), {-1, 0, 62, 63, 64}),
        ((made.Modulo(7),), (3,), {3, 24, 7, 8}),
        ((made.CastTo("int32"),), (5,), {5, 2**32 + 5, 2**31, -(2**31) - 1}),
        ((made.Replaced("-", "", (b"-",)), made.Vocabulary((b"ab12", b"x"), 1, 0)), (1,), {b"-ab12", b"ab-12", b"x-"}),
        ((made.Recased("lower"), made.Retired(b"[PAD]", b"a")), (), {b"[pad]", b"[PAD]", b"A"}),
        (
            (made.KerasLayer("StringLookup", (("vocabulary", (b"a",)), ("mask_token", b"[PAD]"))),),
            (),
            {b"a", b"A", b"[PAD]"},
        ),
    ],
)
def test_the_edges_of_a_chain_are_keys_of_its_input(
    steps: tuple[made.Step, ...], last: tuple[made.Key, ...], wanted: set[made.Key]
) -> None:
    assert wanted <= set(made.edges_of(steps, last))


def test_keys_that_a_dtype_cannot_hold_are_left_out() -> None:
    assert {0, 255, 7} <= set(edge_keys((7, 256, -1, b"x"), "uint8")) <= set(range(256))
    assert {2**63 - 1, -(2**63)} <= set(edge_keys((), "int64"))
    assert {b"", b"\xff\xfe", b"k"} <= set(edge_keys((b"k", 3), "string"))


def test_each_answered_key_is_sent_by_itself_first_and_in_the_first_requests() -> None:
    kinds = {"key": Edges(tuple(range(200)))}
    alone = []

    def is_answered(signature: str, tensors: dict[str, np.ndarray]) -> bool:
        alone.extend(tensors["key"].tolist())
        return bool((tensors["key"] < 150).all())

    found = judged(kinds, {"serving_default": {"key": IDS}}, is_answered)
    assert alone == list(range(200))
    sent = [tensors["key"] for tensors in RandomRequests({"key": IDS}, found, 5).draw(120)]
    refused = [(keys >= 150).sum() for keys in sent]
    assert set(np.concatenate(sent).tolist()) >= set(range(150))
    # A refused key would hide a wrong answer to another key of its request.
    assert set(refused) == {0, 1}
    assert 10 < sum(refused) < 60


def test_the_row_of_a_ragged_request_is_told_with_its_weights() -> None:
    kind = Edges((5, 6), splits="splits", weights="weights")
    specs = {"key": IDS, "splits": IDS, "weights": InputSpec(np.dtype(np.float32), (-1,))}
    tensors = kind.tensors("key", specs, Draw(np.random.default_rng(3), 4, ""))
    first, last = tensors["splits"][2:4].tolist()
    keys, weights = tensors["key"][first:last].tolist(), tensors["weights"][first:last].tolist()
    assert kind.row("key", tensors, 2) == f"key={keys} weights={weights}"


INT64, TEXT = np.dtype(np.int64), np.dtype(object)


def array(*numbers: float, dtype: str = "float32") -> np.ndarray:
    return np.array(numbers, dtype)


def test_answers_are_compared_bit_for_bit() -> None:
    nan = float("nan")
    assert difference({"a": array(1, nan)}, {"a": array(1, nan)}) == ""
    assert difference({"a": array(1, 1 + 2**-22)}, {"a": array(1, 1)}) == "a: other numbers"
    # -0.0 equals 0.0, but has other bits.
    assert difference({"a": array(-0.0)}, {"a": array(0.0)}) == "a: other numbers"
    assert difference({"a": array(1)}, {"a": array(1, dtype="float64")}) == "a: float32[1] instead of float64[1]"
    assert difference({"a": array(1)}, {"a": array(1, 2)}) == "a: float32[1] instead of float32[2]"
    assert difference({"a": array(1)}, {"b": array(1)}) == "outputs ['a'] instead of ['b']"
    assert difference({"a": array(b"x", dtype="O")}, {"a": array(b"y", dtype="O")}) == "a: other numbers"


def test_a_refusal_is_held_against_a_refusal() -> None:
    def refuse(code: str) -> Any:
        raise Refused(code, "no")

    tally = Tally()
    compare(tally, Refused("InvalidArgument", "no"), lambda: refuse("INVALID_ARGUMENT"))
    assert (tally.equal, tally.refused, tally.asked) == (1, 1, 1)
    compare(tally, Refused("InvalidArgument", "no"), lambda: refuse("INTERNAL"))
    compare(tally, Refused("InvalidArgument", "no"), lambda: {"a": array(1)})
    compare(tally, {"a": array(1)}, lambda: refuse("INVALID_ARGUMENT"))
    assert (tally.equal, tally.refused, tally.asked) == (1, 1, 4)
    assert len(tally.reasons) == 3


def requests(kinds: dict[str, Kind], *, count: int = 400, **specs: InputSpec) -> list[dict[str, np.ndarray]]:
    return list(RandomRequests(specs, kinds, seed=1).draw(count))


def test_ids_reach_both_ends() -> None:
    found = [r["item"] for r in requests({"item": ids(50)}, item=InputSpec(INT64, (-1, 3)))]
    assert {item.shape[1] for item in found} == {3}
    assert {0, 1, 64} <= {len(item) for item in found} <= set(range(65))
    assert {0, 49, -1, 50} < {int(i) for item in found for i in item.flat} <= set(range(-1, 51))
    assert any(len(item) > 1 and len(np.unique(item)) == 1 for item in found)


def test_ragged_rows_are_empty_at_each_place() -> None:
    kinds = {"v": ids(9, splits="s", weights="w")}
    vector = InputSpec(INT64, (-1,))
    found = requests(kinds, v=vector, s=vector, w=InputSpec(np.dtype(np.float32), (-1,)))
    for r in found:
        assert r["s"][0] == 0 and r["s"][-1] == len(r["v"]) == len(r["w"]) and (np.diff(r["s"]) >= 0).all()
    lengths = [np.diff(r["s"]) for r in found if len(r["s"]) > 3]
    assert all(any(rows[place] == 0 and rows.any() for rows in lengths) for place in (0, 1, -1))
    assert any(not rows.any() for rows in lengths)


def test_sparse_ids_name_their_places() -> None:
    specs = {name: InputSpec(INT64, None) for name in ("v", "i", "d")}
    for r in requests({"v": ids(9, indices="i", dense_shape="d")}, **specs):
        assert r["i"].shape == (len(r["v"]), 2)
        # The indices are sorted, distinct and within dense_shape.
        assert len(np.unique(r["i"], axis=0)) == len(r["i"])
        assert r["i"].tolist() == sorted(r["i"].tolist())
        assert not r["i"].size or (r["i"].max(0) < r["d"]).all()


def test_recommenders_get_padding_and_unknown_words() -> None:
    zeros = [(r["t"] == 0).mean() for r in requests({"t": padded(20)}, t=InputSpec(INT64, (-1, -1))) if r["t"].size]
    assert max(zeros) == 1 and 0.4 < np.mean(zeros) < 0.7
    found = {word for r in requests({"w": words("word", 30)}, w=InputSpec(TEXT, (-1,))) for word in r["w"]}
    assert {b"word0", b"word29", b"word-1", b"", "größer".encode()} < found


def test_an_input_that_the_model_does_not_declare_is_told() -> None:
    with pytest.raises(NoKind, match=r"nothing of the inputs \['b'\]"):
        requests({"a": ids(3)}, a=InputSpec(INT64, (-1,)), b=InputSpec(INT64, (-1,)))


def test_requests_are_the_same_for_the_same_seed() -> None:
    once, again = (requests({"item": ids(50)}, item=InputSpec(INT64, (-1,))) for _ in range(2))
    assert all((a["item"] == b["item"]).all() for a, b in zip(once, again, strict=True))


def test_every_model_has_a_name_of_its_own_and_declared_inputs() -> None:
    models = all_models()
    assert len(models) >= 100
    assert all(isinstance(model, ForeignModel) and model.inputs for model in models.values())
    zoo = Zoo()
    zoo.add("a", {}, lambda folder: None)
    with pytest.raises(ValueError, match="two models are named 'a'"):
        zoo.add("a", {}, lambda folder: None)


def test_work_goes_on_behind_a_name_that_ends_the_process() -> None:
    names = ["fine", "missing", "fatal", "slow"]
    found = run_each("tests.unit.loadtest.unlucky_work", names, [], {})
    assert [*found] == names
    assert found["fine"] == {"seconds": 1} and found["slow"] == {"seconds": 9}
    assert found["missing"]["error"].startswith("KeyError: 'missing' (unlucky_work.py:")
    assert found["fatal"] == {"error": "the process ended (3): no memory is left"}
