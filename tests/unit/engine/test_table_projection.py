"""The projection finds a table's principal components as numpy's decomposition does, and keeps finished maps."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from service.engine.table_view import MAX_MAPS, KeptMaps, ids_on_map, project
from service.errors import IdOutOfRange, Overloaded
from service.types import Array


def reading(table: Array) -> Callable[[Array], Array]:
    """Returns a function that reads rows of a table."""
    return lambda ids: table[ids]


@pytest.mark.parametrize(("rows", "dim"), [(500, 16), (40, 64), (9000, 3)])
def test_places_are_those_of_the_principal_components(rows: int, dim: int) -> None:
    random = np.random.default_rng(rows)
    table = (random.standard_normal((rows, dim)) * (0.7 ** np.arange(dim)) + 5).astype(np.float32)
    found = project(reading(table), rows)
    centred = table.astype(np.float64) - table.mean(axis=0, dtype=np.float64)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(axes[np.arange(2), np.abs(axes[:2]).argmax(axis=1)])[:, None]
    assert found.ids.tolist() == list(range(rows))
    assert np.abs(found.places - centred @ axes.T).max() < 2e-2 * lengths[0] / np.sqrt(rows)
    assert np.allclose(found.explained, lengths[:2] ** 2 / np.square(centred).sum(), rtol=1e-3)
    assert np.allclose(found.norms, np.linalg.norm(table, axis=1), rtol=1e-6)


def test_a_large_table_is_sampled_the_same_each_time() -> None:
    table = np.random.default_rng(1).standard_normal((5000, 4)).astype(np.float32)
    first, second = (project(reading(table), 5000, max_points=300) for _ in range(2))
    assert len(first.ids) == 300 == len(np.unique(first.ids)) and (np.diff(first.ids) > 0).all()
    assert first.ids[0] < 500 and first.ids[-1] > 4500
    assert (first.ids == second.ids).all() and (first.places == second.places).all()
    assert (ids_on_map(5000, max_points=300) == first.ids).all()


@pytest.mark.parametrize("dim", [1, 2])
def test_tables_of_few_numbers_equal_rows_and_odd_numbers_have_a_map(dim: int) -> None:
    table = np.full((6, dim), 3, np.float32)
    equal = project(reading(table), 6)
    assert not equal.places.any() and equal.explained == (0.0, 0.0)
    table[:, 0] = [0, 1, 2, 3, np.nan, np.inf]
    odd = project(reading(table), 6)
    assert np.isfinite(odd.places).all() and not odd.places[4:].any()
    assert np.isnan(odd.norms[4]) and np.isinf(odd.norms[5])
    assert np.argsort(odd.places[:4, 0]).tolist() in ([0, 1, 2, 3], [3, 2, 1, 0])
    assert len(project(reading(table[:1]), 1).ids) == 1


def waited(maps: KeptMaps[int], key: object, of: object, make: Callable[[], int]) -> int:
    """Asks for a map until it has been made; returns it."""
    while (found := maps.get(key, of, make)) is None:
        threading.Event().wait(0.001)
    return found


def test_a_map_is_made_once_and_again_for_another_object() -> None:
    maps: KeptMaps[int] = KeptMaps()
    made: list[int] = []
    first, second = object(), object()

    def make() -> int:
        made.append(1)
        return len(made)

    assert [waited(maps, "key", of, make) for of in (first, first, second, second)] == [1, 1, 2, 2]
    maps.close()


def test_a_failure_is_told_once_and_tried_again() -> None:
    maps: KeptMaps[int] = KeptMaps()

    def fail() -> int:
        raise IdOutOfRange("gone")

    with pytest.raises(IdOutOfRange):
        waited(maps, "key", maps, fail)
    assert waited(maps, "key", maps, lambda: 7) == 7
    maps.close()


def test_maps_that_wait_and_maps_that_are_kept_are_limited() -> None:
    maps: KeptMaps[int] = KeptMaps()
    gate = threading.Event()

    def slow() -> int:
        gate.wait(20)
        return 1

    for key in range(MAX_MAPS):
        assert maps.get(key, maps, slow) is None
    with pytest.raises(Overloaded):
        maps.get("one more", maps, slow)
    gate.set()
    for key in range(3 * MAX_MAPS):
        assert waited(maps, key, maps, lambda: 2) in (1, 2)
    # The first maps were dropped, because more maps were asked for than are kept, so they are computed again.
    assert waited(maps, 0, maps, lambda: 3) == 3
    maps.close()
