"""Builds models whose tables have other dtypes than float32, or unusual shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.foreign.kinds import Ids, Ragged
from loadtest.foreign.models import ZOO, Rows
from loadtest.foreign.random_tables import save_module, spec, variable

_INPUTS = {"item": Ids(1000), "tag_values": Ragged(300, splits="tag_splits")}


def _add_dtype(dtype: str) -> None:
    def build(folder: Path, rows: Rows) -> None:
        import tensorflow as tf

        items, tags = variable("item", rows(1000), 16, dtype=dtype), variable("tag", rows(300), 8, dtype=dtype)

        def as_float(item: Any) -> Any:
            return {"rows": tf.cast(tf.gather(items, item), tf.float32)}

        def mean(tag_values: Any, tag_splits: Any) -> Any:
            vectors = tf.cast(tf.gather(tags, tag_values), tf.float32)
            return {"mean": tf.reduce_mean(tf.RaggedTensor.from_row_splits(vectors, tag_splits), axis=1)}

        signatures = {
            "stored": (lambda item: {"rows": tf.gather(items, item)}, [spec("item")]),
            "as_float": (as_float, [spec("item")]),
            "mean": (mean, [spec("tag_values"), spec("tag_splits")]),
        }
        save_module(folder, {"items": items, "tags": tags}, signatures)

    ZOO.add(f"table_of_{dtype}", _INPUTS, build)


for _dtype in ("float16", "bfloat16", "float64"):
    _add_dtype(_dtype)


@ZOO.foreign({"item": Ids(1000)})
def table_of_int8_with_scale(folder: Path, rows: Rows) -> None:
    """Builds a model that stores rows as int8 with a scale for each row; its graph multiplies a row by its scale."""
    import tensorflow as tf

    stored = tf.Variable(tf.cast(tf.round(variable("item", rows(1000), 16) * 40.0), tf.int8))
    scale = tf.Variable(tf.abs(variable("scale", rows(1000), 1)) * 0.025)

    def read(item: Any) -> Any:
        return {"rows": tf.cast(tf.gather(stored, item), tf.float32) * tf.gather(scale, item)}

    save_module(folder, {"stored": stored, "scale": scale}, {"serving_default": (read, [spec("item")])})


@ZOO.foreign({"item": Ids(1000)})
def table_of_one_column(folder: Path, rows: Rows) -> None:
    """Builds a model that reads biases [V] and weights [V, 1]."""
    import tensorflow as tf

    biases, weights = variable("bias", rows(1000)), variable("weight", rows(1000), 1)

    def read(item: Any) -> Any:
        return {"bias": tf.gather(biases, item), "weight": tf.gather(weights, item)}

    save_module(folder, {"biases": biases, "weights": weights}, {"serving_default": (read, [spec("item")])})


@ZOO.foreign({"item": Ids(1000)})
def table_of_three_dimensions(folder: Path, rows: Rows) -> None:
    """Builds a model whose table has a matrix [4, 8] for each id."""
    import tensorflow as tf

    table = variable("item", rows(1000), 4, 8)
    save_module(
        folder, {"table": table}, {"serving_default": (lambda i: {"rows": tf.gather(table, i)}, [spec("item")])}
    )


@ZOO.foreign({"item": Ids(1000)})
def table_changed_in_the_graph(folder: Path, rows: Rows) -> None:
    """Builds a model that returns rows multiplied by another variable, and the norms of the rows."""
    import tensorflow as tf

    table, factor = variable("item", rows(1000), 16), variable("factor", 16)

    def read(item: Any) -> Any:
        return {"rows": tf.gather(table, item) * factor, "length": tf.norm(tf.gather(table, item), axis=1)}

    save_module(folder, {"table": table, "factor": factor}, {"serving_default": (read, [spec("item")])})


@ZOO.foreign({"item": Ids(500), "shifted": Ids(500, low=1)})
def table_read_by_shifted_ids(folder: Path, rows: Rows) -> None:
    """Builds a model that reads rows by ids that start at 1, by ids modulo the number of rows, and by clipped ids."""
    import tensorflow as tf

    table = variable("item", rows(500), 16)
    signatures = {
        "from_one": (lambda shifted: {"rows": tf.gather(table, shifted - 1)}, [spec("shifted")]),
        "modulo": (lambda item: {"rows": tf.gather(table, item % rows(500))}, [spec("item")]),
        "clipped": (lambda item: {"rows": tf.gather(table, tf.clip_by_value(item, 0, rows(500) - 1))}, [spec("item")]),
    }
    save_module(folder, {"table": table}, signatures)
