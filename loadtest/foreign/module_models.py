"""Builds tf.Modules that read tables with tf.gather and tf.nn.embedding_lookup, for padded or ragged rows of ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.foreign.kinds import Ids, Numbers, Padded, Ragged
from loadtest.foreign.models import ZOO, Rows
from loadtest.foreign.random_tables import Tower, save_module, spec, variable

TAGS = 500
_SPLITS = {"tag_values": Ragged(TAGS, splits="tag_splits")}


@ZOO.foreign({"item": Ids(2000)})
def module_gather(folder: Path, rows: Rows) -> None:
    """Builds a model that returns rows, in one signature with int64 ids and one with int32 ids."""
    import tensorflow as tf

    table = variable("item", rows(2000), 16)

    def read(item: Any) -> Any:
        return {"rows": tf.gather(table, item)}

    wide, narrow = [spec("item")], [spec("item", "int32")]
    save_module(folder, {"table": table}, {"serving_default": (read, wide), "narrow": (read, narrow)})


@ZOO.foreign({"user": Ids(3000), "item": Ids(2000), "dense": Numbers()})
def module_gather_and_tower(folder: Path, rows: Rows) -> None:
    """Builds a model that concatenates two rows and numbers; one signature has a tower, another has none."""
    import tensorflow as tf

    users, items, tower = variable("user", rows(3000), 32), variable("item", rows(2000), 16), Tower("tower", 52)

    def join(user: Any, item: Any, dense: Any) -> Any:
        return tf.concat([tf.gather(users, user), tf.gather(items, item), dense], 1)

    specs = [spec("user"), spec("item"), spec("dense", "float32", (None, 4))]
    signatures = {
        "score": (lambda user, item, dense: {"score": tower(join(user, item, dense))}, specs),
        "joined": (lambda user, item, dense: {"joined": join(user, item, dense)}, specs),
    }
    save_module(folder, {"users": users, "items": items, "tower": tower.variables}, signatures)


@ZOO.foreign({"item": Ids(2000), "items": Ids(2000)})
def module_embedding_lookup(folder: Path, rows: Rows) -> None:
    """Builds a model that looks up ids [B] and [B, K], with and without max_norm, and means of rows."""
    import tensorflow as tf

    table = variable("item", rows(2000), 16)
    read = tf.nn.embedding_lookup
    one, many = [spec("item")], [spec("items", "int64", (None, None))]
    signatures = {
        "one": (lambda item: {"rows": read(table, item)}, one),
        "one_bounded": (lambda item: {"rows": read(table, item, max_norm=2.0)}, one),
        "many": (lambda items: {"rows": read(table, items)}, many),
        "many_bounded": (lambda items: {"rows": read(table, items, max_norm=2.0)}, many),
        "many_mean": (lambda items: {"mean": tf.reduce_mean(read(table, items), 1)}, many),
    }
    save_module(folder, {"table": table}, signatures)


def _row_numbers(splits: Any) -> Any:
    import tensorflow as tf

    return tf.repeat(tf.range(tf.size(splits) - 1), tf.cast(splits[1:] - splits[:-1], tf.int32))


def _by_splits(combine: Callable[[Any, Any, Any], Any]) -> Callable[[Path, Rows], None]:
    def build(folder: Path, rows: Rows) -> None:
        import tensorflow as tf

        table, tower = variable("tag", rows(TAGS), 16), Tower("tower", 16)

        def read(tag_values: Any, tag_splits: Any) -> Any:
            return {"tags": combine(tf, tf.gather(table, tag_values), tag_splits)}

        def score(tag_values: Any, tag_splits: Any) -> Any:
            return {"score": tower(read(tag_values, tag_splits)["tags"])}

        specs = [spec("tag_values"), spec("tag_splits")]
        save_module(
            folder, {"table": table, "tower": tower.variables}, {"read": (read, specs), "score": (score, specs)}
        )

    return build


ZOO.add("module_segment_mean", _SPLITS, _by_splits(lambda tf, r, s: tf.math.segment_mean(r, _row_numbers(s))))
ZOO.add("module_segment_sum", _SPLITS, _by_splits(lambda tf, r, s: tf.math.segment_sum(r, _row_numbers(s))))
ZOO.add(
    "module_unsorted_segment_mean",
    _SPLITS,
    _by_splits(lambda tf, r, s: tf.math.unsorted_segment_mean(r, _row_numbers(s), tf.size(s) - 1)),
)
ZOO.add(
    "module_unsorted_segment_sqrt_n",
    _SPLITS,
    _by_splits(lambda tf, r, s: tf.math.unsorted_segment_sqrt_n(r, _row_numbers(s), tf.size(s) - 1)),
)
for _combiner in ("mean", "sum", "max"):
    ZOO.add(
        f"module_ragged_{_combiner}",
        _SPLITS,
        _by_splits(
            lambda tf, r, s, how=f"reduce_{_combiner}": getattr(tf, how)(tf.RaggedTensor.from_row_splits(r, s), axis=1)
        ),
    )


@ZOO.foreign({"tag_values": Ragged(TAGS, lengths="tag_lengths")})
def module_ragged_by_lengths(folder: Path, rows: Rows) -> None:
    """Builds a model that averages the vectors of each row, given the ids of all rows and each row's number of ids."""
    import tensorflow as tf

    table = variable("tag", rows(TAGS), 16)

    def read(tag_values: Any, tag_lengths: Any) -> Any:
        ragged = tf.RaggedTensor.from_row_lengths(tag_values, tag_lengths)
        return {"mean": tf.reduce_mean(tf.gather(table, ragged), axis=1)}

    save_module(folder, {"table": table}, {"serving_default": (read, [spec("tag_values"), spec("tag_lengths")])})


@ZOO.foreign({"tag_values": Ragged(TAGS, rowids="tag_rows", num_rows="num_rows")})
def module_ragged_by_row_numbers(folder: Path, rows: Rows) -> None:
    """Builds a model whose inputs are the ids of all rows, the row number of each id, and the number of rows."""
    import tensorflow as tf

    table = variable("tag", rows(TAGS), 16)

    def read(tag_values: Any, tag_rows: Any, num_rows: Any) -> Any:
        return {"sum": tf.math.unsorted_segment_sum(tf.gather(table, tag_values), tag_rows, num_rows)}

    specs = [spec("tag_values"), spec("tag_rows"), spec("num_rows", "int64", ())]
    save_module(folder, {"table": table}, {"serving_default": (read, specs)})


@ZOO.foreign({"tag_values": Ragged(TAGS, splits="tag_splits", weights="tag_weights")})
def module_ragged_weighted_sum(folder: Path, rows: Rows) -> None:
    """Builds a model that multiplies each vector by a weight before it sums the vectors of a ragged row."""
    import tensorflow as tf

    table = variable("tag", rows(TAGS), 16)

    def read(tag_values: Any, tag_splits: Any, tag_weights: Any) -> Any:
        weighted = tf.gather(table, tag_values) * tag_weights[:, None]
        return {"sum": tf.reduce_sum(tf.RaggedTensor.from_row_splits(weighted, tag_splits), axis=1)}

    specs = [spec("tag_values"), spec("tag_splits"), spec("tag_weights", "float32")]
    save_module(folder, {"table": table}, {"serving_default": (read, specs)})


def _masked_mean(padding: int, *, is_clamped: bool) -> Callable[[Path, Rows], None]:
    def build(folder: Path, rows: Rows) -> None:
        import tensorflow as tf

        table, tower = variable("tag", rows(TAGS), 16), Tower("tower", 16)

        def read(tags: Any) -> Any:
            mask = tf.cast(tf.not_equal(tags, padding), tf.float32)[:, :, None]
            ids = tf.maximum(tags, 0) if is_clamped else tags
            total = tf.reduce_sum(tf.nn.embedding_lookup(table, ids) * mask, 1)
            return {"mean": tf.math.divide_no_nan(total, tf.reduce_sum(mask, 1))}

        specs = [spec("tags", "int64", (None, None))]
        save_module(
            folder,
            {"table": table, "tower": tower.variables},
            {"read": (read, specs), "score": (lambda tags: {"score": tower(read(tags)["mean"])}, specs)},
        )

    return build


ZOO.add("module_padded_by_minus_one", {"tags": Padded(TAGS, -1)}, _masked_mean(-1, is_clamped=True))
ZOO.add("module_padded_by_zero", {"tags": Padded(TAGS, 0)}, _masked_mean(0, is_clamped=False))
