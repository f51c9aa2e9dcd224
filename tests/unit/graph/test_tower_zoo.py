"""Models as teams have them give the same bits and the same errors, whether they are cut or run whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.engine.servable import Servable
from service.errors import InvalidRequest
from service.graph.library import find_core
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native
from service.process.trial import compare_runs
from service.types import Array
from tests.tower_zoo import SIGNATURE, ZOO, ZOO_ROWS

pytestmark = [pytest.mark.tf, pytest.mark.skipif(find_core() is None, reason="the native core is not built")]

# Model of the zoo -> the number of tensors with rows that the last run of its tower was fed.
FED = {
    "dlrm": 8,
    "dlrm_matrix": 8,
    "deepfm": 12,
    "many": 1,
    "hashed": 1,
    "two_towers": 2,
    "columns": 6,
    "tags": 3,
    "stored": 5,
}
Pair = tuple[Servable, Servable]


@pytest.fixture(scope="module", params=sorted(ZOO))
def model(request: pytest.FixtureRequest, zoo_version: Callable[[str], Path]) -> Iterator[Any]:
    """Yields a model's name, and two servables of it: cut, and whole."""
    folder = zoo_version(request.param)
    serve = frozenset({"serve"})
    cut = ServableLoader(serve, "auto", 1, compile_native)("m", 1, folder)
    whole = ServableLoader(serve, "auto", 1, compile_native, has_towers=False)("m", 1, folder)
    yield request.param, (cut, whole)
    cut.close()
    whole.close()


def answers(pair: Pair, inputs: dict[str, Array]) -> list[dict[str, Array] | str]:
    """Returns the answers of both servables, or the texts with which they refuse."""
    found: list[dict[str, Array] | str] = []
    for servable in pair:
        assert servable.native is not None and not servable.not_run
        try:
            found.append(servable.native.run(SIGNATURE, inputs))
        except InvalidRequest as error:
            # Behind TensorFlow's text, the core names the input that a whole graph may have refused.
            found.append(error.message.partition("; input ")[0])
    return found


def test_it_is_cut_and_fed_as_little_as_can_be(model: tuple[str, Pair]) -> None:
    name, (cut, _) = model
    tower = cut.backends[SIGNATURE]
    assert isinstance(tower, TowerBackend)
    assert len(tower.cuts[SIGNATURE].fed) == FED[name]


def test_answers_are_the_whole_graphs_to_the_bit(model: tuple[str, Pair]) -> None:
    name, pair = model
    random = np.random.default_rng(1)
    for rows in (1, 2, 7, 0, 130):
        if name == "tags" and not rows:
            continue
        got, wanted = answers(pair, ZOO[name].request(rows, ZOO_ROWS, random))
        assert isinstance(got, dict) and isinstance(wanted, dict) and got.keys() == wanted.keys()
        for output, array in wanted.items():
            np.testing.assert_array_equal(got[output], array)
            assert got[output].dtype == array.dtype


def test_rows_that_do_not_fit_are_refused_in_the_graphs_words(model: tuple[str, Pair]) -> None:
    name, pair = model
    if name == "dlrm_matrix":
        pytest.skip("its ids are one input")
    inputs = ZOO[name].request(4, ZOO_ROWS, np.random.default_rng(2))
    inputs["c1"] = inputs["c1"][:3]
    got, wanted = answers(pair, inputs)
    # Two nodes of the graph of deepfm refuse the request, and TensorFlow's executor chooses the error that it returns.
    assert isinstance(got, str) and isinstance(wanted, str) and (got == wanted or name == "deepfm")


def test_an_id_without_a_row_is_refused_in_the_graphs_words(model: tuple[str, Pair]) -> None:
    name, pair = model
    inputs = ZOO[name].request(4, ZOO_ROWS, np.random.default_rng(2))
    ids = inputs["ids" if name == "dlrm_matrix" else "c1"]
    if ids.dtype == object:
        pytest.skip("its ids are in the graph")
    ids[2] = ZOO_ROWS
    got, wanted = answers(pair, inputs)
    assert isinstance(got, str) and got == wanted


def test_one_row_beside_many_is_answered_as_the_graph_does(model: tuple[str, Pair]) -> None:
    # The graph broadcasts a product of one row with many rows, but it can not concatenate tensors of one row and of
    # many.
    name, pair = model
    if name == "dlrm_matrix":
        pytest.skip("its ids are one input")
    inputs = ZOO[name].request(4, ZOO_ROWS, np.random.default_rng(2))
    inputs["c0"] = inputs["c0"][:1]
    got, wanted = answers(pair, inputs)
    assert isinstance(got, dict) == isinstance(wanted, dict) == (name == "two_towers")
    if isinstance(wanted, dict) and isinstance(got, dict):
        np.testing.assert_array_equal(got["score"], wanted["score"])
    else:
        assert got == wanted or name == "deepfm"


def test_both_are_timed_on_each_request(model: tuple[str, Pair]) -> None:
    name, (cut, whole) = model
    random = np.random.default_rng(3)
    requests = {rows: ZOO[name].request(rows, ZOO_ROWS, random) for rows in (1, 3)}
    runs = [lambda inputs, native=servable.native: native.run(SIGNATURE, inputs) for servable in (cut, whole)]
    found = compare_runs(*runs, requests, threads=2, turns=1)
    assert found.keys() == {1, 3}
    assert all(rates.ratio == rates.cut / rates.whole > 0 for rates in found.values())
