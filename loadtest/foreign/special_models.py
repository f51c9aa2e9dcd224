"""Builds small models that a description by trial keys once got wrong: one key apart, normalized keys, padded tables.

Each answers rows as they are, so the model itself says what a lookup that `adopt` adds must answer.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.foreign.keras3_models import keras3
from loadtest.foreign.kinds import Edges, edge_keys
from loadtest.foreign.models import GATHERED, ZOO, Rows
from loadtest.foreign.random_steps import (
    AsText,
    Bounded,
    CastTo,
    Clipped,
    Hashed,
    KerasLayer,
    Masked,
    Modulo,
    Replaced,
    Retired,
    Step,
    TextHash,
    Vocabulary,
    chain,
    edges_of,
)
from loadtest.foreign.random_tables import save_module, spec, variable


def _inputs(steps: Sequence[Step], dtype: str, rows: int) -> dict[str, Edges]:
    return {"key": Edges(edge_keys(edges_of(steps, (0, 1, rows // 2, rows - 1, rows, rows + 1, -1)), dtype))}


def _module(name: str, dtype: str, rows: int, *steps: Step) -> None:
    def build(folder: Path, scaled: Rows) -> None:
        import tensorflow as tf

        kept: list[Any] = []
        to_row, table = chain(steps, kept), variable("items", rows, 4)
        signature = (lambda key: {"vector": tf.gather(table, to_row(key))}, [spec("key", dtype)])
        save_module(folder, {"table": table, "kept": kept}, {"serving_default": signature})
        shutil.copytree(folder, folder.parent / GATHERED)

    ZOO.add(name, _inputs(steps, dtype, rows), build)


def _layer(name: str, dtype: str, rows: int, layer: str, **options: Any) -> None:
    step = KerasLayer(layer, tuple(options.items()))
    _keras(name, dtype, rows, (), lambda keras, given: _embedding(keras, rows)(step.made(keras)(given)), step)


def _embedding(keras: Any, rows: int, **options: Any) -> Any:
    return keras.layers.Embedding(rows, 4, embeddings_initializer=keras.initializers.RandomNormal(0, 1), **options)


def _keras(
    name: str,
    dtype: str,
    rows: int,
    shape: tuple[int, ...],
    make: Callable[[Any, Any], Any],
    *steps: Step,
    change: Callable[[Any], Any] = lambda model: None,
    is_cast: bool = False,
) -> None:
    def build(folder: Path, scaled: Rows) -> None:
        keras = keras3()
        given = keras.Input(shape, dtype=dtype, name="key")
        model = keras.Model(given, make(keras, given))
        change(model)
        model.export(str(folder), verbose=False)
        if is_cast:
            # A lookup answers the table's rows; only what the model does with them is rounded.
            stored = _embedding(keras, rows)
            gathered = keras.Model(given, stored(given))
            stored.set_weights(model.layers[-1].get_weights())
            gathered.export(str(folder.parent / GATHERED), verbose=False)
        else:
            shutil.copytree(folder, folder.parent / GATHERED)

    ZOO.add(name, _inputs(steps, dtype, rows), build)


_layer("special_keys_integer_lookup_mask_0", "int64", 5, "IntegerLookup", vocabulary=(101, 205, 309), mask_token=0)
_layer("special_keys_string_lookup_mask_pad", "string", 4, "StringLookup", vocabulary=(b"a", b"b"), mask_token=b"[PAD]")
_layer("special_keys_hashing_mask_0", "int64", 8, "Hashing", num_bins=8, mask_value=0)
_layer("special_keys_hashing_mask_pad", "string", 8, "Hashing", num_bins=8, mask_value=b"[PAD]")
_module("special_keys_hash_of_0_is_padding", "int64", 20, Masked(0, 0, 1, TextHash(19)))
_module("special_keys_hash_of_minus_1_is_missing", "int64", 20, Masked(-1, 0, 1, TextHash(19)))
_module("special_keys_hash_of_nan_is_missing", "string", 20, Masked(b"nan", 0, 1, Hashed(19)))
_module("special_keys_one_id_is_retired", "int64", 1000, Retired(417, 3))
_module(
    "special_keys_dashes_before_a_vocabulary",
    "string",
    20,
    Replaced("-", "", (b"-",)),
    Vocabulary((b"ab12", b"x"), 3, 0),
)
_module("special_keys_dashes_are_removed", "string", 20, Replaced("-", "", (b"ab-12", b"-")), Hashed(20))
_module(
    "special_keys_scheme_is_removed",
    "string",
    20,
    Replaced("^https?://", "", (b"https://a.org", b"http://")),
    Hashed(20),
)
_module(
    "special_keys_signs_become_underscores",
    "string",
    20,
    Replaced("[-./]", "_", (b"-", b".", b"/")),
    Vocabulary((b"a_b", b"c_d"), 3, 0),
)
# The table has more rows than the graph's ids: the last rows belong to no id.
_module("disproved_lookup_padded_table", "int64", 1024, Bounded(0, 1000, 0))
for _rows in (65_536, 65_537):
    _keras(f"large_tables_embedding_{_rows}", "int64", _rows, (), lambda keras, key, n=_rows: _embedding(keras, n)(key))
    _module(f"large_tables_clamped_{_rows}", "int64", _rows, Clipped(0, _rows - 1))
    _module(f"large_tables_unknown_is_last_row_{_rows}", "int64", _rows, Bounded(0, _rows, _rows - 1))
_module("unseen_lookups_int64_ids_cast_to_int32", "int64", 200, CastTo("int32"))
_module("unseen_lookups_uint64_hashes_modulo", "uint64", 200, Modulo(200), CastTo("int64"))
_module("unseen_lookups_uint32_ids", "uint32", 200, CastTo("int64"))
_module("unseen_lookups_text_of_ids_hashed", "int64", 200, AsText(), Hashed(200))
_keras(
    "unseen_lookups_mixed_bfloat16",
    "int64",
    60,
    (3,),
    lambda keras, key: _embedding(keras, 60, dtype="mixed_bfloat16")(key),
    is_cast=True,
)
_keras("unseen_lookups_default_input_dtype", "float32", 60, (3,), lambda keras, key: _embedding(keras, 60)(key))
_keras(
    "unseen_lookups_quantized_to_int8",
    "int64",
    60,
    (3,),
    lambda keras, key: _embedding(keras, 60)(key),
    change=lambda model: model.quantize("int8"),
)
_keras(
    "unseen_lookups_lora",
    "int64",
    60,
    (3,),
    lambda keras, key: _embedding(keras, 60)(key),
    change=lambda model: model.layers[1].enable_lora(2),
)


def _tied(keras: Any, key: Any) -> Any:
    layer = keras.layers.ReversibleEmbedding(60, 8)
    hidden = keras.layers.GlobalAveragePooling1D()(layer(key))
    return {"hidden": hidden, "logits": layer(hidden, reverse=True)}


_keras("unseen_lookups_tied_weights", "int64", 60, (3,), _tied)
