"""Predicts over tables in a cluster give the numbers that those over mapped tables give, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model_export.remote.push import push
from service.engine.servable import Servable
from service.graph.native_form import PythonOnly
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.loading.native_graphs import native_graphs
from service.loading.remote_tables import RemoteTables
from service.remote.address import StoreAddress
from tests.integration.test_towers import SERVE, answers, folder, random_request
from tests.valkey_cluster import Cluster, needs_program

__all__ = ["folder"]

pytestmark = [pytest.mark.tf, needs_program]


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servable, Servable]]:
    """The model with all tables in a cluster, and with all mapped."""
    with Cluster(tmp_path_factory.mktemp("nodes"), 0) as cluster:
        pushed = push(folder, StoreAddress.parse(cluster.address), model="m")
        address = StoreAddress.parse(cluster.address + "?timeout_ms=60000&node_timeout_ms=30000")
        tables = RemoteTables({one.table: address for one in pushed}, lambda: None)
        both = (
            ServableLoader(SERVE, "auto", 1, open_remote=tables.open)("m", 1, folder),
            ServableLoader(SERVE, "auto", 1)("m", 1, folder),
        )
        yield both
        for servable in both:
            servable.close()


def test_predicts_are_cut_and_the_core_leaves_them_to_python(pair: tuple[Servable, Servable]) -> None:
    remote, mapped = pair
    assert remote.remote_tables == set(mapped.tables)
    assert isinstance(remote.backends["serving_default"], TowerBackend)
    assert isinstance(native_graphs(remote)["serving_default"], PythonOnly)


@pytest.mark.parametrize("rows", [0, 1, 9, 64])
def test_a_prediction_is_that_over_mapped_tables(pair: tuple[Servable, Servable], rows: int) -> None:
    random = np.random.default_rng(rows)
    for _ in range(3):
        got, wanted = answers(pair, "serving_default", random_request(pair[1], rows, random))
        assert got.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_array_equal(got[name], wanted[name])
