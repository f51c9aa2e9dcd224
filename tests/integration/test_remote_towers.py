"""Predicts over tables in a cluster give the numbers of mapped tables to the bit, in Python and in the native core."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from model_export.remote.push import push
from service.core.native_servable import compile_native
from service.graph.native_form import NativeGraph
from service.graph.tower import TowerBackend
from service.loading.feature_lookups import CompileNative
from service.loading.graph_opening import native_graphs
from service.loading.loader import ServableLoader
from service.loading.remote_tables import RemoteTables
from service.remote.address import StoreAddress
from service.remote.core_clusters import Clusters
from service.versions.servable import Servable
from tests.integration.test_towers import SERVE, answers, folder, random_request
from tests.native_answers import assert_same, native_answer
from tests.valkey_cluster import Cluster, needs_program

__all__ = ["folder"]

pytestmark = [pytest.mark.tf, needs_program]


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servable, Servable]]:
    """The demo's model opened twice: with all tables in a cluster, and with all tables mapped."""
    with Cluster(tmp_path_factory.mktemp("nodes"), 0) as cluster:
        pushed = push(folder, StoreAddress.parse(cluster.address), model="m")
        address = StoreAddress.parse(cluster.address + "?timeout_ms=60000&node_timeout_ms=30000")
        clusters = Clusters(0)
        tables = RemoteTables({one.table: address for one in pushed}, lambda: None, clusters)
        core: CompileNative = partial(compile_native, clusters=clusters.core)
        load = partial(ServableLoader, SERVE, "auto", compile_native=core)
        both = load(open_remote=tables.open)("m", 1, folder), load()("m", 1, folder)
        yield both
        for servable in both:
            servable.close()


def test_predicts_are_cut_and_the_core_has_the_same_form_of_both(pair: tuple[Servable, Servable]) -> None:
    remote, mapped = pair
    assert remote.remote_tables == set(mapped.tables)
    backend = remote.backends["serving_default"]
    assert isinstance(backend, TowerBackend)
    forms = native_graphs(remote)
    assert {name: type(form) for name, form in forms.items()} == {
        name: type(form) for name, form in native_graphs(mapped).items()
    }
    form = forms["serving_default"]
    assert isinstance(form, NativeGraph)
    assert remote.not_run == mapped.not_run


@pytest.mark.parametrize("rows", [0, 1, 9, 64])
def test_a_prediction_is_that_over_mapped_tables(pair: tuple[Servable, Servable], rows: int) -> None:
    random = np.random.default_rng(rows)
    for _ in range(3):
        inputs = random_request(pair[1], rows, random)
        got, wanted = answers(pair, "serving_default", inputs)
        assert_same(got, wanted)
        assert_same(native_answer(pair[0], "serving_default", inputs), wanted)
