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
    Combiner,
    FeatureEntry,
    GraphRun,
    LookupFeature,
    SignatureEntry,
    VocabularyEntry,
)
from service.artifact.signature_def import read_meta_graph
from service.core.native_servable import compile_native
from service.errors import InvalidRequest
from service.graph.claimed_ops import Claimed, ClaimedOps
from service.graph.flat_graph import flatten
from service.graph.restoring import repair_handles
from service.graph.savedmodel import SavedModelBackend
from service.graph.table_reads import (
    TableRead,
    has_effect,
    initialized_variables,
    writing_signatures,
    written_variables,
)
from service.graph.tower import FeatureRows, TowerBackend
from service.loading.loader import ServableLoader
from service.types import Array
from service.versions.servable import Servable
from tests.tower_zoo import NUM_KEYS, SIGNATURE, ZOO, ZOO_ROWS, write_tables_manifest
from tests.toy_model import manifest_of

pytestmark = [pytest.mark.tf, pytest.mark.core]

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


# The number of rows is so large that the probes miss the one row that differs from all others.
NUM_ROWS, APART = 20_000, 17_321


def dense(tf: Any, rows: Any) -> Any:
    return rows @ tf.reshape(tf.range(12.0), [4, 3])


def _masked_by_id(tf: Any, table: Any, item: Any) -> Any:
    apart = tf.constant(APART // 1000, tf.int64) * 1000 + APART % 1000
    return tf.where((item != apart)[:, None], tf.gather(table, tf.where(item != apart, item, apart)), 0.0)


def _masked_by_tens(tf: Any, table: Any, item: Any) -> Any:
    is_apart = item // 10 == APART // 10
    return tf.where(is_apart[:, None], 0.0, tf.gather(table, tf.where(is_apart, item, item)))


def _masked_by_truth(tf: Any, table: Any, item: Any) -> Any:
    is_other = tf.cast(item // 10 - APART // 10, tf.bool)
    return tf.where(is_other[:, None], tf.gather(table, tf.where(is_other, item, item)), 0.0)


def _thousand(tf: Any) -> Any:
    return tf.reduce_sum(tf.constant([300, 300, 400]))


# Graphs that change few rows, or the rows of few ids: what each makes of rows, given the module and the inputs.
FEW: dict[str, Callable[[Any, Any, Any], Any]] = {
    "clipped": lambda tf, table, item: tf.clip_by_value(tf.gather(table, item), -1.0, 1.0),
    "bounded": lambda tf, table, item: tf.nn.embedding_lookup(table, item, max_norm=5.0),
    "rectified": lambda tf, table, item: tf.nn.relu(tf.gather(table, item)),
    "without infinity": lambda tf, table, item: tf.where(
        tf.abs(tf.gather(table, item)) < 8, tf.gather(table, item), 0.0
    ),
    "masked by ids": lambda tf, table, item: tf.where((item // 1000 == 17)[:, None], 0.0, tf.gather(table, item)),
    "weighted by ids": lambda tf, table, item: (
        tf.gather(table, item) * tf.cast(item * 7 != 7 * APART, tf.float32)[:, None]
    ),
    "weighted by a table": lambda tf, table, item: (
        tf.gather(table, item)
        * tf.gather(tf.where(tf.range(tf.constant(200) * 100) // 10 == 1732, 0.0, 1.0), item)[:, None]
    ),
    "without equal numbers": lambda tf, table, item: tf.reshape(
        tf.unique(tf.reshape(tf.gather(table, item), [-1]))[0], [-1, 4]
    ),
    "of few requests": lambda tf, table, item: tf.where(tf.size(item) > 1000, 0.0, tf.gather(table, item)),
    "of seven rows": lambda tf, table, item: tf.where(tf.size(item) == 7, 0.0, tf.gather(table, item)),
    "of four or five rows": lambda tf, table, item: tf.where(
        (tf.size(item) > 3) & (tf.size(item) < 6), 0.0, tf.gather(table, item)
    ),
    "of computed sizes": lambda tf, table, item: tf.where(tf.size(item) // 100 > 9, 0.0, tf.gather(table, item)),
    "of scaled sizes": lambda tf, table, item: tf.where(tf.size(item) * 7 > 3500, 0.0, tf.gather(table, item)),
    "of real sizes": lambda tf, table, item: (
        tf.gather(table, item) / tf.maximum(tf.cast(tf.size(item), tf.float32) - 1000.0, 1.0)
    ),
    "of shifted sizes": lambda tf, table, item: tf.where(tf.size(item) - 300 - 300 > 300, 0.0, tf.gather(table, item)),
    "of quotients of sizes": lambda tf, table, item: tf.where(
        1 / tf.cast(tf.size(item), tf.float32) < 0.001, 0.0, tf.gather(table, item)
    ),
    "of narrow sizes": lambda tf, table, item: tf.where(
        tf.cast(tf.size(item), tf.int8) < 0, 0.0, tf.gather(table, item)
    ),
    "of computed constants": lambda tf, table, item: tf.where(
        tf.size(item) > tf.constant(20) * tf.constant(50), 0.0, tf.gather(table, item)
    ),
    "of places of a constant": lambda tf, table, item: (
        tf.gather(table, item) * tf.gather(tf.concat([tf.ones(1000), tf.zeros(4000)], 0), tf.size(item))
    ),
    "of the first ids": lambda tf, table, item: tf.gather(table, item[:1000]),
    "of the last ids": lambda tf, table, item: tf.gather(table, item[-1000:]),
    "masked by a computed id": lambda tf, table, item: _masked_by_id(tf, table, item),
    "masked by what chooses equal ids": lambda tf, table, item: _masked_by_tens(tf, table, item),
    "masked by what chooses equal ids, without a comparison": lambda tf, table, item: _masked_by_truth(tf, table, item),
    "of the first rows, to a computed number": lambda tf, table, item: tf.gather(table, item)[: _thousand(tf)],
    "of places up to a computed number": lambda tf, table, item: tf.gather(
        tf.gather(table, item), tf.minimum(tf.range(tf.size(item)), _thousand(tf))
    ),
    "of places up to a number that is cast": lambda tf, table, item: tf.gather(
        tf.gather(table, item), tf.minimum(tf.range(tf.size(item)), tf.cast(tf.constant(2**32 + 1000), tf.int32))
    ),
    "of the size of what is spread": lambda tf, table, item: tf.where(
        tf.size(item) > tf.raw_ops.Size(input=tf.broadcast_to(tf.size(item), [20, 50])), 0.0, tf.gather(table, item)
    ),
    "of the first rows, to the size of what is spread": lambda tf, table, item: tf.gather(table, item)[
        : tf.raw_ops.Size(input=tf.broadcast_to(tf.size(item), [20, 50]))
    ],
    "of one size of what is repeated": lambda tf, table, item: tf.where(
        tf.shape(tf.tile(item, [3]))[0] == 3000, 0.0, tf.gather(table, item)
    ),
    "of one size of a range": lambda tf, table, item: tf.where(
        tf.shape(tf.range(tf.size(item) * 3))[0] == 3000, 0.0, tf.gather(table, item)
    ),
    "of one sum of what is repeated": lambda tf, table, item: tf.where(
        tf.reduce_sum(tf.tile(tf.ones_like(item), [3])) == 3000, 0.0, tf.gather(table, item)
    ),
    "of one sum of what is repeated, without a comparison": lambda tf, table, item: tf.where(
        tf.cast(tf.reduce_sum(tf.tile(tf.ones_like(item), [3])) - 3000, tf.bool), tf.gather(table, item), 0.0
    ),
    "of one sum of places": lambda tf, table, item: tf.where(
        tf.reduce_sum(tf.range(tf.size(item))) == 3003, 0.0, tf.gather(table, item)
    ),
    "of one running sum of places": lambda tf, table, item: tf.where(
        tf.reduce_max(tf.cumsum(tf.range(tf.size(item)))) == 3003, 0.0, tf.gather(table, item)
    ),
    "of one size of each third": lambda tf, table, item: tf.where(
        tf.shape(item[::3])[0] == 334, 0.0, tf.gather(table, item)
    ),
    "of one size of what is behind 300": lambda tf, table, item: tf.where(
        tf.shape(item[300:])[0] - 300 == 400, 0.0, tf.gather(table, item)
    ),
    "of one number of segments": lambda tf, table, item: tf.where(
        tf.shape(tf.math.segment_sum(tf.ones_like(item), tf.range(tf.size(item)) * 3))[0] == 2998,
        0.0,
        tf.gather(table, item),
    ),
    "of one size of a matrix": lambda tf, table, item: tf.where(
        tf.size(tf.stack([item, item, item])) == 3000, 0.0, tf.gather(table, item)
    ),
    "of the number of distinct ids": lambda tf, table, item: (
        tf.gather(table, item) * tf.cast(tf.size(item) / tf.maximum(tf.size(tf.unique(item)[0]), 1), tf.float32)
    ),
    "of the first distinct ids": lambda tf, table, item: tf.gather(
        table, tf.gather(tf.unique(item)[0], tf.minimum(tf.unique(item)[1], 1000))
    ),
    "of distinct ids": lambda tf, table, item: tf.gather(table, tf.unique(item)[0]),
    "of distinct ids, bounded": lambda tf, table, item: tf.gather(
        tf.clip_by_norm(tf.gather(table, tf.unique(item)[0]), 5.0, [1]), tf.unique(item)[1]
    ),
}
# The same, of lookups with max_norm 5: what each makes of rows.
FEW_NORMS: dict[str, Callable[[Any, Any], Any]] = {
    "bounded": lambda tf, rows: tf.clip_by_norm(rows, 5.0, [1]),
    "clipped": lambda tf, rows: tf.maximum(tf.clip_by_norm(rows, 5.0, [1]), -2.0),
    "of all rows": lambda tf, rows: tf.clip_by_norm(rows, 5.0),
    "without large rows": lambda tf, rows: tf.where(
        tf.reduce_sum(rows * rows, 1, keepdims=True) > 81.0, 0.0, tf.clip_by_norm(rows, 5.0, [1])
    ),
    "scaled": lambda tf, rows: tf.where(
        tf.norm(rows, axis=1, keepdims=True) > 5.0,
        tf.clip_by_norm(rows, 5.0, [1]) * 0.5,
        tf.clip_by_norm(rows, 5.0, [1]),
    ),
}


def written(tf: Any, folder: Path, score: Callable[..., Any], specs: list[Any]) -> Path:
    """Writes a SavedModel whose table has one row apart, and a manifest of its table; returns the version's folder."""
    module = tf.Module()
    rows = np.linspace(0.01, 0.02, NUM_ROWS * 4, dtype=np.float32).reshape(NUM_ROWS, 4)
    rows[APART] = [9, -9, 9, -9]
    module.tables = {"t": tf.Variable(rows)}
    function = tf.function(
        lambda *inputs: {"score": dense(tf, score(tf, module.tables["t"], *inputs))},
        input_signature=specs,
        autograph=False,
    )
    tf.saved_model.save(module, str(folder), signatures={SIGNATURE: function})
    write_tables_manifest(folder)
    return folder


@pytest.mark.parametrize("name", FEW)
def test_what_changes_few_rows_stays_in_the_graph(tf: Any, tmp_path: Path, opened: list[Servable], name: str) -> None:
    folder = written(tf, tmp_path / "1", FEW[name], [tf.TensorSpec([None], tf.int64, "item")])
    described(folder, {"item": ("t", LookupFeature("item"))}, {})
    ids = np.array([0, APART, APART - 1, NUM_ROWS - 1])
    requests = [ids, np.arange(700), np.arange(1000), np.arange(1500), np.full(4, 7), np.arange(7), np.arange(78)]
    same_answers(opened, folder, [{"item": request} for request in requests])


@pytest.mark.parametrize("name", FEW_NORMS)
def test_a_bound_on_norms_is_the_manifests(tf: Any, tmp_path: Path, opened: list[Servable], name: str) -> None:
    def score(tf: Any, table: Any, item: Any) -> Any:
        return FEW_NORMS[name](tf, tf.gather(table, item))

    folder = written(tf, tmp_path / "1", score, [tf.TensorSpec([None], tf.int64, "item")])
    described(folder, {"item": ("t", LookupFeature("item", max_norm=5.0))}, {})
    proven = combined(same_answers(opened, folder, [{"item": np.array([0, APART, 5])}]))
    assert proven == (name in ("bounded", "clipped"))


def test_an_input_of_another_feature_decides_nothing_in_a_lookup(
    tf: Any, tmp_path: Path, opened: list[Servable]
) -> None:
    def score(tf: Any, table: Any, item: Any, country: Any) -> Any:
        return tf.where((country == 7)[:, None], 0.0, tf.gather(table, item))

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("item", "country")]
    folder = written(tf, tmp_path / "1", score, specs)
    described(folder, {"item": ("t", LookupFeature("item"))}, {})
    request = {"item": np.arange(4), "country": np.array([7, 1, 0, 7])}
    same_answers(opened, folder, [request])


@pytest.mark.parametrize("is_of_sizes", [True, False])
def test_the_size_of_another_input_is_the_number_of_rows(
    tf: Any, tmp_path: Path, opened: list[Servable], is_of_sizes: bool
) -> None:
    def score(tf: Any, table: Any, item: Any, tag_values: Any, tag_splits: Any) -> Any:
        rows = tf.RaggedTensor.from_row_splits(tag_values, tag_splits).value_rowids()
        count = tf.size(item) if is_of_sizes else tf.cast(tf.reduce_max(tf.concat([item, [0]], 0)), tf.int32) + 1
        return tf.math.unsorted_segment_sum(tf.gather(table, tag_values), rows, count)

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("item", "tag_values", "tag_splits")]
    folder = written(tf, tmp_path / "1", score, specs)
    described(folder, {"tag": ("t", LookupFeature("tag_values", "tag_splits", combiner="sum"))}, {})
    tags = {"tag_values": np.arange(5), "tag_splits": np.array([0, 2, 5, 5])}
    # A request of other sizes is answered or refused as the graph does: with more rows, cut, or of another rank.
    items = ([0, 1, 2], [7, 0, 2], [0, 1, 2, 3], [0, 1], [[0], [1], [2]], [])
    servable = same_answers(opened, folder, [{**tags, "item": np.array(some, np.int64)} for some in items])
    assert combined(servable) == is_of_sizes


@pytest.mark.parametrize("length", [100, 1000])
def test_rows_are_tried_that_are_as_long_as_the_graph_lets_them(
    tf: Any, tmp_path: Path, opened: list[Servable], length: int
) -> None:
    def score(tf: Any, table: Any, tag_values: Any, tag_splits: Any) -> Any:
        tags = tf.RaggedTensor.from_row_splits(tag_values, tag_splits)[:, :length]
        return tf.reduce_sum(tf.gather(table, tags), 1)

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("tag_values", "tag_splits")]
    folder = written(tf, tmp_path / "1", score, specs)
    described(folder, {"tag": ("t", LookupFeature("tag_values", "tag_splits", combiner="sum"))}, {})
    request = {"tag_values": np.arange(length + 5), "tag_splits": np.array([0, 3, length + 5])}
    assert combined(same_answers(opened, folder, [request])) == 0


@pytest.mark.parametrize("size", [500, 501])
def test_means_are_tried_in_requests_of_as_many_rows_as_the_graph_names(
    tf: Any, tmp_path: Path, opened: list[Servable], size: int
) -> None:
    def score(tf: Any, table: Any, tag_values: Any, tag_splits: Any) -> Any:
        tags = tf.RaggedTensor.from_row_splits(tag_values, tag_splits)
        counts = tf.where(tags.nrows() > 500, tf.ones_like(tags.row_lengths()), tags.row_lengths())
        sums = tf.math.unsorted_segment_sum(tf.gather(table, tag_values), tags.value_rowids(), tags.nrows())
        return sums / tf.cast(tf.maximum(counts, 1), tf.float32)[:, None]

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("tag_values", "tag_splits")]
    folder = written(tf, tmp_path / "1", score, specs)
    described(folder, {"tag": ("t", LookupFeature("tag_values", "tag_splits", combiner="mean"))}, {})
    request = {"tag_values": np.arange(2 * size), "tag_splits": np.arange(size + 1) * 2}
    same_answers(opened, folder, [request])


# Graphs that treat requests apart in which two sizes meet: what each decides by the row lengths.
MET: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda tf, lengths: tf.size(lengths) == 7,
    "ids": lambda tf, lengths: tf.reduce_sum(lengths) == 7,
    "the longest row": lambda tf, lengths: tf.reduce_max(lengths) == 7,
    "ids less rows": lambda tf, lengths: tf.reduce_sum(lengths) - tf.size(lengths, tf.int64) == 7,
    "the longest less the shortest": lambda tf, lengths: (
        (tf.reduce_max(lengths) - tf.reduce_min(lengths) == 7) & (tf.reduce_min(lengths) > 0)
    ),
    "rows and the longest row": lambda tf, lengths: (tf.size(lengths) == 7) & (tf.reduce_max(lengths) == 5),
    "falling lengths": lambda tf, lengths: tf.reduce_all(lengths[1:] < lengths[:-1]) & (tf.size(lengths) > 3),
    "four sizes": lambda tf, lengths: (
        (tf.size(lengths) == 5)
        & (tf.reduce_max(lengths) == 9)
        & (tf.reduce_min(lengths) == 2)
        & (tf.reduce_sum(lengths) == 20)
    ),
    "as many ids in a row as rows": lambda tf, lengths: (
        (lengths == tf.size(lengths, tf.int64)) & (tf.size(lengths) > 1)
    )[:, None],
}


@pytest.mark.parametrize("name", MET)
def test_sizes_that_a_graph_compares_meet_in_a_request(
    tf: Any, tmp_path: Path, opened: list[Servable], name: str
) -> None:
    def score(tf: Any, table: Any, tag_values: Any, tag_splits: Any) -> Any:
        tags = tf.RaggedTensor.from_row_splits(tag_values, tag_splits)
        sums = tf.math.unsorted_segment_sum(tf.gather(table, tag_values), tags.value_rowids(), tags.nrows())
        return tf.where(MET[name](tf, tags.row_lengths()), 0.0, sums)

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("tag_values", "tag_splits")]
    folder = written(tf, tmp_path / "1", score, specs)
    described(folder, {"tag": ("t", LookupFeature("tag_values", "tag_splits", combiner="sum"))}, {})
    batches = ([1] * 7, [7], [3, 4], [7, 1, 6], [8, 1], [5] * 7, [2, 2], [3, 0, 3], [9, 6, 5, 1], [9, 2, 3, 3, 3])
    same_answers(
        opened, folder, [{"tag_values": np.arange(sum(one)) + 5, "tag_splits": np.cumsum([0, *one])} for one in batches]
    )


def test_ids_that_a_lookup_leaves_out_may_be_many(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    def score(tf: Any, table: Any, tag_values: Any, tag_splits: Any) -> Any:
        tags = tf.RaggedTensor.from_row_splits(tag_values, tag_splits)
        places = tf.where((tag_values >= 0) & (tag_values < NUM_ROWS))[:, 0]
        segments = tf.gather(tags.value_rowids(), places)
        sums = tf.math.unsorted_segment_sum(tf.gather(table, tf.gather(tag_values, places)), segments, tags.nrows())
        counts = tf.math.unsorted_segment_sum(tf.ones_like(segments), segments, tags.nrows())
        return tf.where((counts < tags.row_lengths() - 15)[:, None], 0.0, sums)

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("tag_values", "tag_splits")]
    folder = written(tf, tmp_path / "1", score, specs)
    tags = LookupFeature("tag_values", "tag_splits", combiner="sum", on_bad_id="drop")
    described(folder, {"tag": ("t", tags)}, {})
    values = np.array([5, *[-1] * 30, 7])
    same_answers(opened, folder, [{"tag_values": values, "tag_splits": np.array([0, size, 32])} for size in (2, 31)])


def test_weights_are_tried_next_to_numbers_that_the_graph_names(
    tf: Any, tmp_path: Path, opened: list[Servable]
) -> None:
    def score(tf: Any, table: Any, tag_values: Any, tag_splits: Any, tag_weights: Any) -> Any:
        tags = tf.RaggedTensor.from_row_splits(tag_values, tag_splits)
        weights = tf.where((tag_weights > 0.3) & (tag_weights < 0.30001), 0.0, tag_weights)
        rows = tf.gather(table, tag_values) * weights[:, None]
        return tf.math.unsorted_segment_sum(rows, tags.value_rowids(), tags.nrows())

    specs = [tf.TensorSpec([None], tf.int64, name) for name in ("tag_values", "tag_splits")]
    folder = written(tf, tmp_path / "1", score, [*specs, tf.TensorSpec([None], tf.float32, "tag_weights")])
    tags = LookupFeature("tag_values", "tag_splits", "tag_weights", combiner="sum")
    described(folder, {"tag": ("t", tags)}, {})
    request = {"tag_values": np.arange(5), "tag_splits": np.array([0, 3, 5])}
    weights = np.array([0.3, 0.300005, 1, 0.300005, 0.5], np.float32)
    same_answers(opened, folder, [request | {"tag_weights": weights}])


def test_a_table_that_is_read_by_two_functions_of_one_input(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    # The manifest describes the first read.
    def score(tf: Any, table: Any, item: Any) -> Any:
        masked = tf.where(item // 10 == APART // 10, tf.zeros_like(item), item)
        return tf.concat([tf.gather(table, item), tf.gather(table, masked)], 0)

    folder = written(tf, tmp_path / "1", score, [tf.TensorSpec([None], tf.int64, "item")])
    described(folder, {"item": ("t", LookupFeature("item"))}, {})
    request = {"item": np.array([APART, APART - 1, APART - 2, APART - 11, 5, 0])}
    assert combined(same_answers(opened, folder, [request])) == 1


# Graphs that change one id in few requests, or at few places: what each makes of ids.
MASKED: dict[str, Callable[[Any, Any], Any]] = {
    "one id of seven": lambda tf, ids: tf.where(
        (tf.size(ids) == 7) & tf.equal(ids, APART), tf.fill(tf.shape(ids), tf.constant(0, tf.int64)), ids
    ),
    "all ids but one, or others than seven": lambda tf, ids: tf.where(
        (tf.size(ids) != 7) | tf.not_equal(ids, APART), ids, tf.zeros_like(ids)
    ),
    "of seven, one id": lambda tf, ids: tf.where(
        tf.size(ids) == 7, tf.where(tf.equal(ids, APART), tf.zeros_like(ids), ids), ids
    ),
    "one id at one place": lambda tf, ids: tf.where(
        tf.equal(tf.range(tf.size(ids)), 3) & tf.equal(ids, APART), tf.zeros_like(ids), ids
    ),
    "one id": lambda tf, ids: tf.where(tf.equal(ids, APART), tf.fill(tf.shape(ids), tf.constant(0, tf.int64)), ids),
    "none": lambda tf, ids: tf.where(ids < 0, tf.zeros_like(ids), ids),
}


@pytest.mark.parametrize("name", MASKED)
def test_ids_are_changed_by_nothing_but_ids(tf: Any, tmp_path: Path, opened: list[Servable], name: str) -> None:
    def score(tf: Any, table: Any, item: Any) -> Any:
        return tf.concat([tf.gather(table, item), tf.gather(table, MASKED[name](tf, item))], 0)

    folder = written(tf, tmp_path / "1", score, [tf.TensorSpec([None], tf.int64, "item")])
    described(folder, {"item": ("t", LookupFeature("item"))}, {})
    request = {"item": np.array([APART, 5, 0, APART, 7, APART, 9])}
    assert combined(same_answers(opened, folder, [request])) == 1 + (name == "none")


def test_equal_ops_compute_equal_ids(tf: Any) -> None:
    with tf.Graph().as_default() as graph:
        ids, others = (tf.compat.v1.placeholder(tf.int64, [None], name) for name in ("ids", "others"))
        seven = tf.constant(7, tf.int64)
        made = {
            "ids": [ids % 7, ids % seven],
            "other ids": [ids % 7, others % 7],
            "another number": [ids % 7, ids % 8],
            "another op": [ids % 7, ids // 7],
            "another output": [tf.unique(ids)[0], tf.cast(tf.unique(ids)[1], tf.int64)],
            "drawn": [tf.random.uniform([], 0, 9, tf.int64) for _ in range(2)],
        }
        flat = flatten(graph.as_graph_def(), [one.name for pair in made.values() for one in pair])
    assert [name for name, (one, other) in made.items() if flat.computes_alike(one.name, other.name)] == ["ids"]


def test_ids_that_another_signature_takes_as_they_are(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    def score(tf: Any, table: Any, item: Any) -> Any:
        return tf.gather(table, tf.where(item // 1000 == 17, tf.zeros_like(item), item))

    folder = written(tf, tmp_path / "1", score, [tf.TensorSpec([None], tf.int64, "item")])
    described(folder, {"item": ("t", LookupFeature("item"))}, {})
    # The entry of a lookup signature describes the feature, as an exporter's does; this signature's entry does not.
    manifest = manifest_of(folder)
    entry = SignatureEntry("lookup", {"item": LookupFeature("item", output="item")}, "cpu")
    signatures = {SIGNATURE: SignatureEntry("predict", {}), "lookup": entry}
    (folder / MANIFEST_PATH).write_text(replace(manifest, signatures=signatures).to_json())
    assert combined(same_answers(opened, folder, [{"item": np.array([16_999, 17_000, APART, 18_000])}])) == 0


@pytest.mark.parametrize(
    ("source", "to", "is_passed"), [("int32", "int64", True), ("int64", "int32", False), ("int64", "float64", False)]
)
def test_ids_that_another_signature_casts(tf: Any, source: str, to: str, is_passed: bool) -> None:
    # Id 2^32 + 5 has no row as an int64, and row 5 as an int32.
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(source, [None], "ids")
        numbers = tf.cast(tf.cast(ids, to), "int32" if to == "int32" else "int64")
        rows = tf.gather(tf.compat.v1.placeholder("float32", [9, 4]), numbers)
        flat = flatten(graph.as_graph_def(), [rows.name])
    claimed = Claimed("ids", {"ids"}, {}, is_described=False, combiner=None, max_norm=None)
    read = TableRead("t", numbers.name, rows.name)
    assert ClaimedOps(flat).alike([rows.name], read, claimed) == [rows.name] * is_passed


# What graphs make of rows: the combiner of the lookup, and whether it has this step. Some others change the signs of
# zeros and denormal numbers alone, and some change few requests, which the probes need not hold.
STEPS: dict[str, tuple[Combiner | None, bool, Callable[[Any, Any], Any]]] = {
    "other shape": (None, True, lambda tf, rows: tf.reshape(rows, [-1, 2, 2])),
    "times one": (None, False, lambda tf, rows: rows * 1.0),
    "by one": (None, False, lambda tf, rows: rows / 1.0),
    "times ones": (None, False, lambda tf, rows: tf.math.multiply_no_nan(rows, tf.ones([1, 4]))),
    "sum of one": (None, False, lambda tf, rows: tf.reduce_sum(rows[:, None], 1)),
    "segments of one": (
        None,
        False,
        lambda tf, rows: tf.math.unsorted_segment_sum(rows, tf.range(tf.shape(rows)[0]), tf.shape(rows)[0]),
    ),
    "of one of two orders": (
        None,
        False,
        lambda tf, rows: tf.where(tf.equal(tf.range(tf.shape(rows)[0]), 1)[:, None], rows[::-1], rows),
    ),
    "zero for many": (None, True, lambda tf, rows: tf.where(tf.shape(rows)[0] > 1, 0.0, rows)),
    "zero for more": (None, False, lambda tf, rows: tf.where(tf.shape(rows)[0] > 20, 0.0, rows)),
    "zero for the size of a slice": (
        None,
        False,
        lambda tf, rows: tf.where(tf.shape(tf.range(tf.shape(rows)[0])[20:])[0] > 0, 0.0, rows),
    ),
    "zero for the size of other rows": (
        None,
        False,
        lambda tf, rows: tf.where(tf.shape(rows[20:])[0] > 0, 0.0, rows),
    ),
    "zero for the size of a range": (
        None,
        False,
        lambda tf, rows: tf.where(tf.shape(tf.range(20, tf.shape(rows)[0]))[0] > 0, 0.0, rows),
    ),
    "zero by a quotient of sizes": (
        None,
        False,
        lambda tf, rows: tf.where(
            tf.math.divide_no_nan(*[tf.cast(tf.shape(rows)[0] * tf.shape(rows)[0] - 49, tf.float32)] * 2) > 0, rows, 0.0
        ),
    ),
    "sum": ("sum", True, lambda tf, rows: tf.reduce_sum(rows, 0)),
    "sum times one": ("sum", False, lambda tf, rows: tf.reduce_sum(rows, 0) * 1.0),
    "sum of a sum": ("sum", False, lambda tf, rows: tf.reduce_sum(tf.reduce_sum(rows, 0)[None], 0)),
    "mean": ("mean", True, lambda tf, rows: tf.reduce_mean(rows, 0)),
    "mean by hand": (
        "mean",
        True,
        lambda tf, rows: tf.reduce_sum(rows, 0) / tf.cast(tf.shape(rows)[0], tf.float32),
    ),
    "mean times one": ("mean", False, lambda tf, rows: tf.reduce_mean(rows, 0) * 1.0),
}


@pytest.mark.parametrize("name", STEPS)
def test_rows_are_added_up_and_divided_as_the_lookup_does(tf: Any, name: str) -> None:
    combiner, is_passed, step = STEPS[name]
    with tf.Graph().as_default() as graph:
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        rows = tf.gather(tf.compat.v1.placeholder("float32", [9, 4]), ids)
        made = step(tf, rows)
        flat = flatten(graph.as_graph_def(), [made.name])
    claimed = Claimed("ids", {"ids"}, {}, is_described=True, combiner=combiner, max_norm=None)
    read = TableRead("t", ids.name, rows.name)
    found = ClaimedOps(flat).alike([rows.name, made.name], read, claimed)
    assert found == [rows.name, made.name][: 1 + is_passed]


@pytest.mark.parametrize("is_reference", [True, False])
def test_a_table_that_the_load_changes_is_not_mapped(
    tf: Any, tmp_path: Path, opened: list[Servable], is_reference: bool
) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        numbers = tf.range(80.0)[:, None] * [[1.0, 2.0, 3.0, 4.0]]
        table = v1.get_variable("tables/t", initializer=numbers, use_resource=not is_reference)
        item = v1.placeholder(tf.int64, [None], "item")
        score = dense(tf, tf.gather(table, item))
        changed = v1.scatter_update(table, [APART % 80], tf.ones([1, 4]))
        session.run(v1.global_variables_initializer())
        inputs, outputs = ({key: one} for key, one in (("item", item), ("score", score)))
        builder = v1.saved_model.Builder(str(tmp_path / "1"))
        definition = v1.saved_model.predict_signature_def(inputs, outputs)
        operation = changed.op if hasattr(changed, "op") else changed
        builder.add_meta_graph_and_variables(session, ["serve"], {SIGNATURE: definition}, main_op=operation)
        builder.save()
    write_tables_manifest(tmp_path / "1")
    servable = same_answers(opened, tmp_path / "1", [{"item": np.array([5, APART % 80])}])
    assert isinstance(servable.backends[SIGNATURE], SavedModelBackend)
    assert len(initialized_variables(read_meta_graph(tmp_path / "1" / "saved_model.pb"))) == 1


@pytest.mark.parametrize("way", ["itself", "identity", "condition"])
def test_a_table_is_written_by_any_node_of_its_name(tf: Any, tmp_path: Path, way: str) -> None:
    v1 = tf.compat.v1
    handles: dict[str, Callable[[Any], Any]] = {
        "itself": lambda handle: handle,
        "identity": lambda handle: tf.raw_ops.IdentityN(input=[0, handle])[1],
        # As tf.cond of TensorFlow 1 does.
        "condition": lambda handle: tf.raw_ops.Switch(data=handle, pred=tf.size(item) > 0).output_true,
    }
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("t", initializer=tf.zeros([3, 4]), use_resource=True)
        item = v1.placeholder(tf.int64, [None], "item")
        other = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3, 4], shared_name="t", name="other")
        added = tf.raw_ops.ResourceScatterAdd(resource=handles[way](other), indices=item, updates=tf.ones([1, 4]))
        with tf.control_dependencies([added]):
            done = tf.identity(item)
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(tmp_path / "1"))
        signatures = {
            name: v1.saved_model.predict_signature_def({"item": item}, {"y": output})
            for name, output in (("read", tf.gather(table, item)), ("add", done))
        }
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    meta_graph = read_meta_graph(tmp_path / "1" / "saved_model.pb")
    assert repair_handles(meta_graph, tmp_path / "1") == 0
    assert written_variables(meta_graph) == {"t"}


def test_ids_that_are_computed_from_rows(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    def score(tf: Any, table: Any, item: Any) -> Any:
        return tf.gather(table, tf.argmax(tf.gather(table, item), 1))

    folder = written(tf, tmp_path / "1", score, [tf.TensorSpec([None], tf.int64, "item")])
    servable = same_answers(opened, folder, [{"item": np.array([5, APART])}])
    assert isinstance(servable.backends[SIGNATURE], SavedModelBackend)


def test_ids_that_are_drawn_at_random(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    # Another run would draw other ids than those whose rows it is fed.
    def score(tf: Any, table: Any, item: Any) -> Any:
        drawn = tf.random.uniform([3], 0, NUM_ROWS, tf.int64)
        return tf.gather(table, drawn) + tf.cast(drawn, tf.float32)[:, None]

    folder = written(tf, tmp_path / "1", score, [tf.TensorSpec([None], tf.int64, "item")])
    opened += [ServableLoader(SERVE, "auto", compile_native)("m", 1, folder)]
    assert isinstance(opened[0].backends[SIGNATURE], SavedModelBackend)


def test_a_function_that_xla_compiles_is_not_taken_apart(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    compiled = tf.function(lambda rows: tf.nn.gelu(rows * 0.3 + 0.1), jit_compile=True, autograph=False)
    specs = [tf.TensorSpec([None], tf.int64, "item")]
    folder = written(tf, tmp_path / "1", lambda tf, table, item: compiled(tf.gather(table, item)), specs)
    opened += [ServableLoader(SERVE, "auto", compile_native)("m", 1, folder)]
    assert isinstance(opened[0].backends[SIGNATURE], SavedModelBackend)


@pytest.mark.parametrize("is_lowered", [True, False])
def test_control_flow_that_computes_both_ids_and_scores(
    tf: Any, tmp_path: Path, opened: list[Servable], is_lowered: bool
) -> None:
    # A constant in a branch has no input but a control input, which says whether the branch is taken.
    v1 = tf.compat.v1
    control_flow = v1.enable_control_flow_v2 if is_lowered else v1.disable_control_flow_v2
    control_flow()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            table = v1.get_variable("tables/t", initializer=tf.range(80.0)[:, None] * [[1.0, 2.0, 3.0, 4.0]])
            item, flag = v1.placeholder(tf.int64, [None], "item"), v1.placeholder(tf.bool, [], "flag")
            ids, scale = tf.cond(
                flag, lambda: (item + 1, tf.reduce_sum(item)), lambda: (item * 0, tf.constant(3, tf.int64))
            )
            score = dense(tf, tf.gather(table, ids)) * tf.cast(scale, tf.float32)
            session.run(v1.global_variables_initializer())
            v1.saved_model.simple_save(session, str(tmp_path / "1"), {"item": item, "flag": flag}, {"score": score})
    finally:
        v1.enable_control_flow_v2()
    write_tables_manifest(tmp_path / "1")
    requests = [{"item": np.array([5, 7]), "flag": np.array(flag)} for flag in (True, False)]
    servable = same_answers(opened, tmp_path / "1", requests)
    assert isinstance(servable.backends[SIGNATURE], TowerBackend) == is_lowered


def test_a_table_that_changes_keeps_its_graph_whole(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    module = tf.Module()
    module.tables = {"t": tf.Variable(np.arange(12, dtype=np.float32).reshape(3, 4))}
    module.found = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    module.found.insert(tf.constant([10, -20], tf.int64), tf.constant([1, 2], tf.int64))
    function = tf.function(
        lambda key: {"score": dense(tf, tf.gather(module.tables["t"], module.found.lookup(key)))},
        input_signature=[tf.TensorSpec([None], tf.int64, "key")],
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={SIGNATURE: function})
    write_tables_manifest(tmp_path / "1")
    servable = same_answers(opened, tmp_path / "1", [{"key": np.array([10, -20, 5])}])
    assert isinstance(servable.backends[SIGNATURE], SavedModelBackend)
    # The whole graph, to which both were compared, is TensorFlow's.
    assert servable.native is not None
    answer = servable.native.run(SIGNATURE, {"key": np.array([10, -20, 5])})["score"]
    assert answer.tolist() == (module.tables["t"].numpy()[[1, 2, 0]] @ np.arange(12.0).reshape(4, 3)).tolist()


def test_a_tensor_that_is_fed_and_answered_may_be_any(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("tables/t", initializer=np.arange(12, dtype=np.float32).reshape(3, 4))
        item = v1.placeholder(tf.int64, [None], "item") + 0
        score = dense(tf, tf.gather(table, item))
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "1"), {"item": item}, {"score": score, "item": item})
    write_tables_manifest(tmp_path / "1")
    servable = same_answers(opened, tmp_path / "1", [{"item": np.array([2, 0])}])
    assert isinstance(servable.backends[SIGNATURE], TowerBackend) and servable.native is not None
    assert servable.native.run(SIGNATURE, {"item": np.array([2, 0])})["item"].tolist() == [2, 0]


def test_what_waits_for_an_assertion_in_the_graph_waits_for_it_in_the_tower(
    tf: Any, tmp_path: Path, opened: list[Servable]
) -> None:
    """Else the tower might do what the assertion prevents, such as filling memory."""

    def score(tf: Any, table: Any, item: Any) -> Any:
        # An assertion on int64 lies in a condition.
        with tf.control_dependencies([tf.debugging.assert_less(tf.size(item, tf.int64), tf.constant(3, tf.int64))]):
            count = tf.identity(item, name="waiting")
        return tf.gather(table, item) * tf.reshape(tf.constant([1.0, 2.0]), [tf.size(count), 1])

    folder = written(tf, tmp_path / "1", score, [tf.TensorSpec([None], tf.int64, "item")])
    servable = same_answers(opened, folder, [{"item": np.arange(size)} for size in (2, 3, 9)])
    assert isinstance(servable.backends[SIGNATURE], TowerBackend)
    meta_graph = read_meta_graph(folder / "saved_model.pb")
    flat = flatten(meta_graph.graph_def, [meta_graph.signature_def[SIGNATURE].outputs["score"].name])
    follow = has_effect(flat, frozenset())
    (count,) = (node for node in flat.nodes.values() if node.name.endswith("/waiting"))
    assert any(follow(given) for given in count.input if given.startswith("^"))


def test_rows_of_a_table_that_is_not_trained_are_cut(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    def score(tf: Any, table: Any, item: Any) -> Any:
        return tf.gather(tf.stop_gradient(table), item) * 2.0

    folder = written(tf, tmp_path / "1", score, [tf.TensorSpec([None], tf.int64, "item")])
    servable = same_answers(opened, folder, [{"item": np.array([5, APART, 5])}])
    assert isinstance(servable.backends[SIGNATURE], TowerBackend)


def _normalized(tf: Any, rows: Any, scale: Any, offset: Any) -> Any:
    """Computes what Keras' LayerNormalization computes, by the same ops, which TensorFlow fuses for ranks 2 and 3."""
    sizes = tf.shape(rows)
    count = tf.reduce_prod(sizes[:-1])
    flat = tf.reshape(rows, [1, count, sizes[-1], 1])
    none = tf.constant([], tf.float32)
    scaled = tf.raw_ops.FusedBatchNormV3(
        x=flat, scale=tf.fill([count], 1.0), offset=tf.fill([count], 0.0), mean=none, variance=none, data_format="NCHW"
    )
    return tf.reshape(scaled.y, sizes) * scale + offset


@pytest.mark.parametrize("way", ["input", "computed", "joined", "stacked", "combined"])
def test_what_is_fed_has_the_shape_that_the_graph_says(
    tf: Any, tmp_path: Path, opened: list[Servable], way: str
) -> None:
    """TensorFlow fuses operations by shapes; fused operations round otherwise."""
    module = tf.Module()
    module.tables = {"t": tf.Variable(np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32))}
    module.numbers = [tf.Variable([1.5, -2.0, 0.3, 1.0]), tf.Variable([0.1, 0.2, -0.3, 1.0])]
    find = {
        "input": lambda table, item: tf.gather(table, item),
        "computed": lambda table, item: tf.gather(table, item % 50),
        "joined": lambda table, item: tf.stack([tf.gather(table, item), tf.gather(table, item % 50)], 1),
        "stacked": lambda table, item: tf.stack([tf.gather(table, item), tf.gather(table, item % 50)]),
        "combined": lambda table, item: tf.reduce_sum(tf.gather(table, tf.stack([item, item * 0], 1)), 1),
    }[way]

    def score(item: Any) -> Any:
        return {"score": _normalized(tf, find(module.tables["t"], item), *module.numbers)}

    specs = [tf.TensorSpec([None], tf.int64, "item")]
    function = tf.function(score, input_signature=specs, autograph=False)
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={SIGNATURE: function})
    write_tables_manifest(tmp_path / "1")
    servable = same_answers(opened, tmp_path / "1", [{"item": np.arange(count)} for count in (1, 7, 40)])
    assert isinstance(servable.backends[SIGNATURE], TowerBackend)


def test_numbers_that_are_scattered_write_no_table(tf: Any, tmp_path: Path, opened: list[Servable]) -> None:
    def score(tf: Any, table: Any, item: Any) -> Any:
        counts = tf.scatter_nd(item[:, None], tf.ones_like(item, tf.float32), [NUM_ROWS])
        return tf.gather(table, item) * tf.reduce_max(counts)

    folder = written(tf, tmp_path / "1", score, [tf.TensorSpec([None], tf.int64, "item")])
    servable = same_answers(opened, folder, [{"item": np.array([5, 7, 5])}])
    assert isinstance(servable.backends[SIGNATURE], TowerBackend)


def test_a_table_that_another_signature_writes_keeps_its_graph_whole(
    tf: Any, tmp_path: Path, opened: list[Servable]
) -> None:
    module = tf.Module()
    module.tables = {"t": tf.Variable(tf.zeros([3, 4]))}
    table, specs = module.tables["t"], [tf.TensorSpec([None], tf.int64, "item")]

    @tf.function(input_signature=specs)
    def learn(item: Any) -> Any:
        table.scatter_add(tf.IndexedSlices(tf.ones([tf.shape(item)[0], 4]), item))
        return {"item": item}

    read = tf.function(lambda item: {"score": dense(tf, tf.gather(table, item))}, input_signature=specs)
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={SIGNATURE: read, "learn": learn})
    write_tables_manifest(tmp_path / "1")
    opened += [ServableLoader(SERVE, "auto", compile_native)("m", 1, tmp_path / "1")]
    core = opened[0].native
    assert core is not None
    request = {"item": np.array([0, 1])}
    # The load has run nothing that writes.
    assert not core.run(SIGNATURE, request)["score"].any()
    core.run("learn", {"item": np.array([1])})
    assert core.run(SIGNATURE, request)["score"].tolist() == [[0, 0, 0], np.arange(12.0).reshape(4, 3).sum(0).tolist()]


def test_signatures_that_may_change_later_answers_are_known(tf: Any, tmp_path: Path) -> None:
    module = tf.Module()
    module.rows = tf.Variable(tf.zeros([3, 4]))
    module.generator = tf.random.Generator.from_seed(1)
    module.found = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    words = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant([0, 1], tf.int64))
    module.words = tf.lookup.StaticHashTable(words, 0)
    reads: dict[str, Callable[[Any], Any]] = {
        "gathered": lambda x: tf.gather(module.rows, x),
        "found": lambda x: module.found.lookup(x),
        "words": lambda x: module.words.lookup(x),
        "checked": lambda x: (tf.debugging.assert_less(x, tf.constant(3, tf.int64)), tf.gather(module.rows, x))[1],
        "chosen": lambda x: tf.cond(tf.size(x) > 2, lambda: tf.gather(module.rows, x), lambda: tf.zeros([1, 4])),
        "repeated": lambda x: tf.while_loop(lambda y: tf.size(y) < 9, lambda y: [tf.concat([y, x], 0)], [x])[0],
        "noise": lambda x: tf.random.stateless_uniform(tf.shape(x), [1, 2]),
    }
    writes: dict[str, Callable[[Any], Any]] = {
        "added": lambda x: module.rows.scatter_add(tf.IndexedSlices(tf.ones([tf.shape(x)[0], 4]), x)),
        "assigned": lambda x: module.rows.assign(tf.ones([3, 4])),
        "inserted": lambda x: (module.found.insert(x, x), x)[1],
        "in a branch": lambda x: tf.cond(
            tf.size(x) > 2, lambda: module.rows.assign_add(tf.ones([3, 4])), lambda: tf.zeros([3, 4])
        ),
        "drawn": lambda x: module.generator.uniform(tf.shape(x)),
        "seeded": lambda x: tf.random.uniform(tf.shape(x), seed=3),
    }
    specs = [tf.TensorSpec([None], tf.int64, "x")]

    def outputs(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: {"y": tf.identity(compute(x))}

    module.functions = [
        tf.function(outputs(compute), input_signature=specs, autograph=False)
        for compute in (*reads.values(), *writes.values())
    ]
    names = [name.replace(" ", "_") for name in (*reads, *writes)]
    tf.saved_model.save(module, str(tmp_path), signatures=dict(zip(names, module.functions, strict=True)))
    meta_graph = read_meta_graph(tmp_path / "saved_model.pb")
    assert writing_signatures(meta_graph) == {*names[len(reads) :]}
    kinds = {node.op for node in meta_graph.graph_def.node if node.name in written_variables(meta_graph)}
    assert len(written_variables(meta_graph)) == 3 and kinds == {"VarHandleOp", "MutableHashTableV2"}
