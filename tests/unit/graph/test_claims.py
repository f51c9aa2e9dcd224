"""Compares a manifest's claims about keys and empty rows with the graph; a true claim saves a run of the graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.manifest import (
    MANIFEST_PATH,
    FeatureEntry,
    GraphRun,
    LookupFeature,
    SignatureEntry,
    VocabularyEntry,
)
from service.core.native_servable import compile_native
from service.errors import InvalidRequest
from service.graph.library import find_core
from service.graph.savedmodel import SavedModelBackend
from service.graph.tower import FeatureRows, TowerBackend
from service.loading.loader import ServableLoader
from service.types import Array
from service.versions.servable import Servable
from tests.tower_zoo import NUM_KEYS, SIGNATURE, ZOO, ZOO_ROWS
from tests.toy_model import manifest_of

pytestmark = [pytest.mark.tf, pytest.mark.skipif(find_core() is None, reason="the native core is not built")]

SERVE = frozenset({"serve"})
TAGS = LookupFeature("tag_values", "tag_splits", combiner="mean", trailing_empty_rows="cut")


@pytest.fixture(scope="module")
def folders(zoo_version: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Copies three zoo models and returns their folders by name; tests rewrite their manifests."""
    base = tmp_path_factory.mktemp("claims")
    return {name: Path(shutil.copytree(zoo_version(name), base / name)) for name in ("hashed", "two_towers", "tags")}


@pytest.fixture
def opened() -> Iterator[list[Servable]]:
    """Returns a list; the servables that a test appends are closed after it."""
    servables: list[Servable] = []
    yield servables
    for servable in servables:
        servable.close()


def described(
    folder: Path,
    features: dict[str, tuple[str, LookupFeature]],
    vocabularies: dict[str, VocabularyEntry],
    run: GraphRun = "cut",
) -> None:
    """Describes a signature's features in the manifest, each with its table; a vocabulary is named like its feature."""
    manifest = manifest_of(folder)
    entries = {
        name: FeatureEntry(table, name if name in vocabularies else None) for name, (table, _) in features.items()
    }
    entry = SignatureEntry("predict", {name: lookup for name, (_, lookup) in features.items()}, run=run)
    written = replace(manifest, features=entries, signatures={SIGNATURE: entry}, vocabularies=vocabularies, files={})
    (folder / MANIFEST_PATH).write_text(written.to_json())


def combined(servable: Servable) -> int:
    """Returns how many sources of the tower's signature are whole features."""
    tower = servable.backends[SIGNATURE]
    assert isinstance(tower, TowerBackend)
    return sum(isinstance(source, FeatureRows) for source in tower.cuts[SIGNATURE].sources.values())


def same_answers(opened: list[Servable], folder: Path, requests: list[dict[str, Array]]) -> Servable:
    """Checks that a version answers and refuses requests as its whole graph does; returns the servable with towers."""
    opened += [ServableLoader(SERVE, "auto", compile_native)("m", 1, folder)]
    opened += [ServableLoader(SERVE, "auto", compile_native, has_towers=False)("m", 1, folder)]
    for request in requests:
        told: list[Any] = []
        for servable in opened[-2:]:
            assert servable.native is not None and servable.not_run == {}
            try:
                told.append(servable.native.run(SIGNATURE, request)["score"].tolist())
            except InvalidRequest as error:
                told.append(error.message)
        assert told[0] == told[1]
    return opened[-2]


def requests(name: str) -> list[dict[str, Array]]:
    """Returns random requests of 1, 5 and 40 rows for a model of the zoo."""
    random = np.random.default_rng(8)
    return [ZOO[name].request(rows, ZOO_ROWS, random) for rows in (1, 5, 40)]


def test_hashed_keys_need_one_run(folders: dict[str, Path], opened: list[Servable]) -> None:
    keys = {f"c{i}": VocabularyEntry("", 0, num_oov_buckets=ZOO_ROWS) for i in range(4)}
    described(folders["hashed"], {f"c{i}": (f"t{i:02}", LookupFeature(f"c{i}")) for i in range(4)}, keys)
    servable = same_answers(opened, folders["hashed"], requests("hashed"))
    tower = servable.backends[SIGNATURE]
    assert isinstance(tower, TowerBackend)
    assert combined(servable) == 4 and tower.cuts[SIGNATURE].id_tensors == ()
    assert len(tower.cuts[SIGNATURE].fed) == 1


@pytest.mark.parametrize(("first_id", "num_proven"), [(1, 2), (2, 0)])
def test_keys_of_a_table_in_the_graph(
    folders: dict[str, Path], opened: list[Servable], first_id: int, num_proven: int
) -> None:
    folder = folders["two_towers"]
    (folder / "assets.extra" / "keys.txt").write_text("".join(f"key {i}\n" for i in range(NUM_KEYS)))
    entry = VocabularyEntry("assets.extra/keys.txt", NUM_KEYS, first_id, oov_id=0)
    features = {f"c{i}": (f"t{i:02}", LookupFeature(f"c{i}")) for i in range(2)}
    described(folder, features, dict.fromkeys(features, entry))
    assert combined(same_answers(opened, folder, requests("two_towers"))) == num_proven


def tags_request(*lengths: int) -> dict[str, Array]:
    """Returns a request of the zoo's model "tags"; lengths: the number of tags in each row."""
    request = ZOO["tags"].request(len(lengths), ZOO_ROWS, np.random.default_rng(4))
    splits = np.cumsum([0, *lengths])
    return request | {"tag_values": np.arange(splits[-1]) % ZOO_ROWS, "tag_splits": splits}


@pytest.mark.parametrize(
    ("feature", "num_proven"),
    [
        (TAGS, 1),
        (replace(TAGS, trailing_empty_rows="keep"), 0),
        (replace(TAGS, on_empty_row="nan"), 0),
        (replace(TAGS, combiner="sum"), 0),
        (replace(TAGS, max_norm=1.0), 0),
    ],
)
def test_rows_without_ids(
    folders: dict[str, Path], opened: list[Servable], feature: LookupFeature, num_proven: int
) -> None:
    described(folders["tags"], {"tags": ("t02", feature)}, {})
    odd = [tags_request(0, 2, 0, 30), tags_request(3, 1, 0), tags_request(0, 0)]
    assert combined(same_answers(opened, folders["tags"], [*requests("tags"), *odd])) == num_proven


def test_a_signature_that_is_to_run_whole_does(folders: dict[str, Path], opened: list[Servable]) -> None:
    described(folders["tags"], {"tags": ("t02", TAGS)}, {}, run="whole")
    opened += [ServableLoader(SERVE, "auto", compile_native)("m", 1, folders["tags"])]
    assert isinstance(opened[0].backends[SIGNATURE], SavedModelBackend)
