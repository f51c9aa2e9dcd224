"""Applies a feature's policy for ids outside the table in a graph, before the graph gathers rows."""

from __future__ import annotations

from typing import Any

from model_export.graphs.reduced_graph import GraphTable
from model_export.tensorflow_setup import tf
from service.artifact.manifest import LookupFeature


def placed(lookup: LookupFeature, ids: Any, vocabulary_size: int) -> tuple[Any, Any | None]:
    """Applies the policy on_bad_id; returns ids in [0, V), except refused ones, and a mask of the ids to keep (None:
    all).

    Ids that the policy refuses stay unchanged; bad_id_checks() finds them.

    Args:
      ids: [N] int64 or int32.
    """
    if lookup.on_bad_id == "error":
        return ids, None
    last = tf.constant(vocabulary_size - 1, ids.dtype)
    if lookup.on_bad_id == "clamp":
        return tf.clip_by_value(ids, tf.zeros([], ids.dtype), last), None
    if lookup.on_bad_id == "wrap":
        return tf.where(ids < 0, ids + last + 1, ids), None
    is_inside = ids >= 0
    if lookup.on_bad_id != "drop_negative":
        is_inside = tf.logical_and(is_inside, ids <= last)
    if lookup.on_bad_id == "default_row":
        return tf.where(is_inside, ids, tf.constant(lookup.default_row, ids.dtype)), None
    return tf.where(is_inside, ids, tf.zeros([], ids.dtype)), is_inside


def bad_id_checks(lookup: LookupFeature, ids: Any, vocabulary_size: int) -> list[Any]:
    """Returns assertions that fail for a refused id. Without them, a gather that XLA compiled would clamp bad ids."""
    checks = []
    if lookup.on_bad_id == "error":
        checks.append(tf.debugging.assert_non_negative(ids, f"{lookup.ids}: an id is negative"))
    if lookup.on_bad_id == "wrap":
        first = tf.constant(-vocabulary_size, ids.dtype)
        checks.append(tf.debugging.assert_greater_equal(ids, first, f"{lookup.ids}: an id is before the table"))
    if lookup.on_bad_id in ("error", "drop_negative", "wrap"):
        last = tf.constant(vocabulary_size, ids.dtype)
        checks.append(tf.debugging.assert_less(ids, last, f"{lookup.ids}: an id is beyond the table"))
    return checks


def too_many_checks(lookup: LookupFeature, ids: Any) -> list[Any]:
    """Returns a list with an assertion that no row has more than K ids; [] if the policy cuts longer rows."""
    if lookup.max_ids_per_row is None or lookup.on_too_many_ids != "error":
        return []
    width = tf.constant(lookup.max_ids_per_row, tf.int64)
    message = f"{lookup.ids}: a row has more than {lookup.max_ids_per_row} ids"
    return [tf.debugging.assert_less_equal(ids.row_lengths(), width, message)]


def gathered(table: Any, ids: Any) -> Any:
    """Gathers a table's vectors for ids of any shape.

    Args:
      table: a variable, a tensor, a list of its parts in order of rows, or a GraphTable (a table stored in fewer bits).
    """
    if isinstance(table, GraphTable):
        return table.gather(ids)
    if isinstance(table, list | tuple):
        return tf.compat.v1.nn.embedding_lookup(list(table), ids, partition_strategy="div")
    return tf.gather(table, ids)
