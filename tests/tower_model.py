"""Writes a model with small tables and one predict signature for each way of reading them; adopt() makes its manifest.

The tower's score is the sum of the columns of the user's row and of the mean of the tags' rows, multiplied by 1, 10,
100 and 1000, plus 0.5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPEC = """
[tables.user]
variable = "tables/user"
[tables.tag]
variable = "tables/tag"
combiner = "mean"
[features.user]
table = "user"
[features.tags]
table = "tag"
is_ragged = true
"""
USERS = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
TAGS = [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]


def write_tower_model(tf: Any, folder: Path) -> Path:
    """Writes version 1 of the tower model below a folder, and returns the version's folder."""
    # The function imports TensorFlow itself, so that a test file can import this module without TensorFlow.
    from model_export.adoption.adopt import adopt

    module = tf.Module()
    module.tables = {"user": tf.Variable(USERS, name="user"), "tag": tf.Variable(TAGS, name="tag")}
    module.kernel = tf.Variable([[1.0], [10.0], [100.0], [1000.0]])
    module.bias = tf.Variable([0.5])
    keys = tf.lookup.KeyValueTensorInitializer([b"ann", b"bob"], tf.constant([1, 2], tf.int64))
    module.names = tf.lookup.StaticHashTable(keys, 0)
    user, tag = module.tables["user"], module.tables["tag"]
    ids = tf.TensorSpec([None], tf.int64, "user")
    ragged = [tf.TensorSpec([None], tf.int64, name) for name in ("tags__values", "tags__row_splits")]
    extra = tf.TensorSpec([None], tf.float32, "extra")

    def mean(values: Any, splits: Any) -> Any:
        rows = tf.RaggedTensor.from_row_splits(values, splits)
        sums = tf.math.unsorted_segment_sum(tf.gather(tag, rows.values), rows.value_rowids(), rows.nrows())
        return tf.math.divide_no_nan(sums, tf.cast(rows.row_lengths(), tf.float32)[:, None])

    def tower(users: Any, tags: Any) -> Any:
        return tf.matmul(tf.concat([users, tags], 1), module.kernel) + module.bias

    def score(user_ids: Any, values: Any, splits: Any) -> dict[str, Any]:
        return {"score": tower(tf.gather(user, user_ids), mean(values, splits))}

    def with_extra(user_ids: Any, values: Any, splits: Any, x: Any) -> dict[str, Any]:
        tf.debugging.assert_less(x, 100.0, message="extra is too large")
        return {"score": tower(tf.gather(user, user_ids), mean(values, splits))[:, 0] + x, "extra_again": x}

    def keyed(names: Any) -> dict[str, Any]:
        return {"rows": tf.gather(user, module.names.lookup(names)) * 2.0, "length": tf.strings.length(names)}

    def rows(user_ids: Any) -> dict[str, Any]:
        return {"rows": tf.gather(user, user_ids)}

    def matrix(user_ids: Any) -> dict[str, Any]:
        return {"rows": tf.reduce_sum(tf.gather(user, user_ids), -1)}

    def one_of_all(user_ids: Any) -> dict[str, Any]:
        return {"likeness": tf.matmul(tf.gather(user, user_ids), user, transpose_b=True)}

    def share(user_ids: Any) -> dict[str, Any]:
        return {"share": tf.nn.softmax(tf.gather(user, user_ids)[:, 0], axis=0)}

    def largest(values: Any, splits: Any) -> dict[str, Any]:
        found = tf.RaggedTensor.from_row_splits(tf.gather(tag, values), splits)
        return {"largest": tf.reduce_max(found, axis=1)}

    def odd(values: Any, splits: Any) -> dict[str, Any]:
        # Signature "odd" replaces id 1 by 0 before it computes the mean; the ids alone do not show it, only a constant
        # of the graph does.
        return {"score": mean(tf.where(values == 1, tf.zeros_like(values), values), splits)}

    signatures = {
        "serving_default": (score, [ids, *ragged]),
        "with_extra": (with_extra, [ids, *ragged, extra]),
        "keyed": (keyed, [tf.TensorSpec([None], tf.string, "names")]),
        "rows": (rows, [ids]),
        "matrix": (matrix, [tf.TensorSpec([None, None], tf.int64, "ids")]),
        "one_of_all": (one_of_all, [ids]),
        "share": (share, [ids]),
        "largest": (largest, ragged),
        "odd": (odd, ragged),
    }
    functions = {
        name: tf.function(function, input_signature=specs, autograph=False)
        for name, (function, specs) in signatures.items()
    }
    foreign = folder / "foreign"
    tf.saved_model.save(module, str(foreign), signatures=functions)
    spec = folder / "spec.toml"
    spec.write_text(SPEC)
    return Path(adopt(foreign, spec, folder / "model", measure=False))
