"""The comparator of foreign models says which answers count as equal, and makes random requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadtest.foreign.children import run_each
from loadtest.foreign.comparing import Refused, Tally, compare, difference, ulps
from loadtest.foreign.kinds import Ids, InputSpec, Kind, NoKind, Padded, Ragged, RandomRequests, Words
from loadtest.foreign.models import ForeignModel, Zoo, all_models

INT64, TEXT = np.dtype(np.int64), np.dtype(object)


def array(*numbers: float, dtype: str = "float32") -> np.ndarray:
    return np.array(numbers, dtype)


def test_answers_are_compared_bit_for_bit() -> None:
    nan = float("nan")
    assert difference({"a": array(1, nan)}, {"a": array(1, nan)}) == ("", 0)
    assert difference({"a": array(1, 1 + 2**-22)}, {"a": array(1, 1)}) == ("a: other numbers", 2)
    # -0.0 equals 0.0, but has other bits.
    assert difference({"a": array(-0.0)}, {"a": array(0.0)}) == ("a: other numbers", 0)
    assert difference({"a": array(1)}, {"a": array(1, dtype="float64")})[0] == "a: float32[1] instead of float64[1]"
    assert difference({"a": array(1)}, {"a": array(1, 2)})[0] == "a: float32[1] instead of float32[2]"
    assert difference({"a": array(1)}, {"b": array(1)})[0] == "outputs ['a'] instead of ['b']"
    assert difference({"a": array(b"x", dtype="O")}, {"a": array(b"y", dtype="O")})[0] == "a: other numbers"


def test_ulps_are_counted_across_zero() -> None:
    smallest = np.nextafter(np.float32(0), np.float32(1))
    assert ulps(array(smallest), array(-smallest)) == 2
    assert ulps(array(1, dtype="float16"), array(1 + 2**-10, dtype="float16")) == 1
    assert ulps(array(5, dtype="int64"), array(6, dtype="int64")) == 0


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
    return list(RandomRequests(specs, kinds, 1, seed=1).draw(count))


def test_ids_reach_both_ends_and_sometimes_lie_outside() -> None:
    found = [r["item"] for r in requests({"item": Ids(50, low=1)}, item=InputSpec(INT64, (-1, 3)))]
    assert {ids.shape[1] for ids in found} == {3}
    assert {len(ids) for ids in found} <= set(range(65))
    assert {0, 1, 64} <= {len(ids) for ids in found}
    outside = [ids for ids in found if ids.size and (ids.min() < 1 or ids.max() > 50)]
    assert 0 < len(outside) < len(found) // 10
    assert {1, 50} <= {int(i) for ids in found for i in ids.flat}
    assert any(len(ids) > 1 and len(np.unique(ids)) == 1 for ids in found)


def test_ragged_rows_are_empty_at_each_place() -> None:
    kinds = {"v": Ragged(9, splits="s", weights="w")}
    vector = InputSpec(INT64, (-1,))
    found = requests(kinds, v=vector, s=vector, w=InputSpec(np.dtype(np.float32), (-1,)))
    for r in found:
        assert r["s"][0] == 0 and r["s"][-1] == len(r["v"]) == len(r["w"]) and (np.diff(r["s"]) >= 0).all()
    lengths = [np.diff(r["s"]) for r in found if len(r["s"]) > 3]
    assert all(any(rows[place] == 0 and rows.any() for rows in lengths) for place in (0, 1, -1))
    assert any(not rows.any() for rows in lengths)


def test_sparse_ids_name_their_places() -> None:
    specs = {name: InputSpec(INT64, None) for name in ("v", "i", "d")}
    for r in requests({"v": Ragged(9, indices="i", dense_shape="d")}, **specs):
        assert r["i"].shape == (len(r["v"]), 2)
        # The indices are sorted, distinct and within dense_shape.
        assert len(np.unique(r["i"], axis=0)) == len(r["i"])
        assert r["i"].tolist() == sorted(r["i"].tolist())
        assert not r["i"].size or (r["i"].max(0) < r["d"]).all()


def test_padded_rows_end_in_padding() -> None:
    found = [r["t"] for r in requests({"t": Padded(20, -1)}, t=InputSpec(INT64, (-1, -1)))]
    # A drawn request with an id outside the table may have padding in another place, but such requests are few.
    padded = [ids for ids in found if not ids.size or ((ids[:, :-1] == -1) <= (ids[:, 1:] == -1)).all()]
    assert 0.9 * len(found) < len(padded)
    assert any((ids == -1).all(1).any() and (ids != -1).any() for ids in padded)


def test_words_are_known_unknown_and_empty() -> None:
    found = requests({"w": Words("word", 30)}, w=InputSpec(TEXT, (-1,)))
    words = {word for r in found for word in r["w"]}
    known = {f"word{i}".encode() for i in range(30)}
    assert 100 < sum({*r["w"]} <= known for r in found) < 300
    assert known < words
    assert {b"", b"no such word", "größer".encode()} < words


def test_an_input_that_the_model_does_not_declare_is_told() -> None:
    with pytest.raises(NoKind, match=r"nothing of the inputs \['b'\]"):
        requests({"a": Ids(3)}, a=InputSpec(INT64, (-1,)), b=InputSpec(INT64, (-1,)))


def test_requests_are_the_same_for_the_same_seed() -> None:
    once, again = (requests({"item": Ids(50)}, item=InputSpec(INT64, (-1,))) for _ in range(2))
    assert all((a["item"] == b["item"]).all() for a, b in zip(once, again, strict=True))


def test_every_model_has_a_name_of_its_own_and_declared_inputs() -> None:
    models = all_models()
    assert len(models) >= 100
    assert all(isinstance(model, ForeignModel) and model.inputs for model in models.values())
    zoo = Zoo()
    zoo.add("a", {}, lambda folder, rows: None)
    with pytest.raises(ValueError, match="two models are named 'a'"):
        zoo.add("a", {}, lambda folder, rows: None)


def test_work_goes_on_behind_a_name_that_ends_the_process() -> None:
    names = ["fine", "missing", "fatal", "slow"]
    found = run_each("tests.unit.loadtest.unlucky_work", names, [], {})
    assert [*found] == names
    assert found["fine"] == {"seconds": 1} and found["slow"] == {"seconds": 9}
    assert found["missing"]["error"].startswith("KeyError: 'missing' (unlucky_work.py:")
    assert found["fatal"] == {"error": "the process ended (3): no memory is left"}
