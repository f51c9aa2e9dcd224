"""Compares exported models with TensorFlow: the server cuts their graphs, and answers as the whole graphs do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.native_servable import compile_native
from service.errors import InvalidRequest
from service.graph.tower import TowerBackend
from service.loading.loader import ServableLoader
from service.types import Array
from service.versions.servable import Servable

pytestmark = [pytest.mark.tf, pytest.mark.core]

SERVE = frozenset({"serve"})


@pytest.fixture(scope="module")
def folder(demo_model: Path) -> Path:
    """Version 1 of the demo's model, whose tables are in TPUEmbedding layers."""
    return demo_model / "1"


@pytest.fixture(scope="module")
def servables(folder: Path) -> Iterator[tuple[Servable, Servable]]:
    """Yields two servables of the model: cut, and whole."""
    pair = (
        ServableLoader(SERVE, "auto", compile_native)("m", 1, folder),
        ServableLoader(SERVE, "auto", compile_native, has_towers=False)("m", 1, folder),
    )
    yield pair
    for servable in pair:
        servable.close()


def answers(servables: tuple[Servable, Servable], name: str, inputs: dict[str, Array]) -> list[dict[str, Array]]:
    """Returns the answers of both servables to the same inputs."""
    return [servable.native.run(name, inputs) for servable in servables if servable.native is not None]


def random_request(servable: Servable, rows: int, random: np.random.Generator) -> dict[str, Array]:
    """Returns a request of valid ids for every feature, with some empty rows."""
    spec = servable.signatures["serving_default"]
    request: dict[str, Array] = {}
    for name in spec.row_inputs:
        request[name] = random.integers(0, spec.inputs[name].vocabulary_size or 2, rows)
    for names in spec.ragged_names:
        lengths = random.integers(0, 12, rows) * random.integers(0, 2, rows)
        request[names.row_splits] = np.concatenate([[0], np.cumsum(lengths)])
        size = spec.inputs[names.values].vocabulary_size or 2
        request[names.values] = random.integers(0, size, int(lengths.sum()))
    return request


def test_every_predict_is_cut(servables: tuple[Servable, Servable]) -> None:
    cut, whole = servables
    towers = {name for name, backend in cut.backends.items() if isinstance(backend, TowerBackend)}
    assert {"serving_default", "serve_examples"} <= towers
    assert not any(isinstance(backend, TowerBackend) for backend in whole.backends.values())


@pytest.mark.parametrize("rows", [0, 1, 2, 9, 64, 200])
def test_a_prediction_is_that_of_the_whole_graph_to_the_bit(servables: tuple[Servable, Servable], rows: int) -> None:
    random = np.random.default_rng(rows)
    for _ in range(3):
        got, wanted = answers(servables, "serving_default", random_request(servables[0], rows, random))
        assert got.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_array_equal(got[name], wanted[name])


def test_a_prediction_from_examples_is_too(tf: Any, servables: tuple[Servable, Servable]) -> None:
    def example(number: int) -> bytes:
        features = {
            "user_id": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            "film_id": tf.train.Feature(int64_list=tf.train.Int64List(value=[number * 2])),
            "occupation": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"writer"])),
            "genres": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"Drama", b"none of them"][: number % 3])),
            "recent_films": tf.train.Feature(int64_list=tf.train.Int64List(value=list(range(number)))),
        }
        return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

    examples = {"examples": np.array([example(number) for number in range(6)], object)}
    got, wanted = answers(servables, "serve_examples", examples)
    np.testing.assert_array_equal(got["rating"], wanted["rating"])


def test_an_example_that_can_not_be_read(servables: tuple[Servable, Servable]) -> None:
    texts = []
    for servable in servables:
        with pytest.raises(InvalidRequest) as caught:
            inputs = {"examples": np.array([b"\xff\xff"], object)}
            assert servable.native is not None
            servable.native.run("serve_examples", inputs)
        texts.append(caught.value.message)
    assert texts[0] == texts[1] != ""
