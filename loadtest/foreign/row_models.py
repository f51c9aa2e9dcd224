"""Models of which each is a row: framework, inputs, steps, tables and combiners, built as random models are."""

from __future__ import annotations

from typing import Any

from loadtest.foreign import random_models as made
from loadtest.foreign.models import ZOO
from loadtest.foreign.random_building import constructed

_WORDS = tuple(b"word%d" % number for number in range(800))
_KEYS = tuple(range(10, 8010, 10))
_COMBINERS = ("sum", "mean", "sqrtn")
_Input = tuple[made.Feature, made.Table]


def _input(
    name: str,
    dtype: str = "int64",
    form: made.Form = "rows",
    *steps: made.Step,
    rows: int = 1000,
    dim: int = 16,
    combiner: str = "none",
    table: str = "",
    saved: str = "float32",
    parts: int = 1,
    strategy: str = "div",
    **more: Any,
) -> _Input:
    """Returns a feature and the table that it reads, by default one of its own; saved: the table's dtype."""
    feature = made.Feature(name, dtype, form, steps, combiner, table or f"{name}_rows", **more)
    return feature, made.Table(feature.table, rows, dim, saved, parts, strategy)


def _add(name: str, framework: made.Framework, *inputs: _Input, tower: str = "none", **more: Any) -> None:
    tables = {table.name: table for _, table in inputs}
    features = tuple(feature for feature, _ in inputs)
    ZOO.put(constructed(made.Construction(name, framework, features, tuple(tables.values()), tower, **more)))


def _layer(name: str, dtype: str, layer: str, rows: int, tower: str = "none", dim: int = 8, **options: Any) -> None:
    """Adds a Keras 3 model with a layer that maps keys to rows."""
    key = _input("key", dtype, "rows", made.KerasLayer(layer, (*options.items(),)), rows=rows, dim=dim)
    _add(name, "keras3", key, tower=tower)


# tf.Modules: gathers, and combiners of padded, ragged and sparse ids.
_add("module_gather", "module", _input("item", table="t", rows=2000), _input("narrow", "int32", table="t", rows=2000))
_add(
    "module_gather_and_tower",
    "module",
    _input("user", rows=3000, dim=32),
    _input("item", rows=2000),
    tower="dense",
    numbers=4,
    has_variant=True,
)
_add(
    "module_embedding_lookup",
    "module",
    _input("one", rows=2000, table="t"),
    _input("one_bounded", rows=2000, table="t", max_norm=2.0),
    _input("many", form="open_grid", rows=2000, table="t"),
    _input("many_bounded", form="open_grid", rows=2000, table="t", max_norm=2.0),
    _input("many_mean", form="open_grid", rows=2000, table="t", combiner="mean"),
)
for _combiner in ("segment_mean", "segment_sum", "reduce_mean", "reduce_sum", "reduce_max"):
    _tags = _input("tag", form="ragged", rows=500, combiner=_combiner)
    _add(f"module_{_combiner.replace('reduce', 'ragged')}", "module", _tags)
for _combiner in ("unsorted_segment_mean", "unsorted_segment_sqrtn", "counted_segment_sqrtn"):
    _tags = _input("tag", form="ragged", rows=500, combiner=_combiner)
    _add(f"module_{_combiner}", "module", _tags, tower="dense", has_variant=True)
for _name, _combiner in (("minus_one", "mean_not_minus_1"), ("zero", "mean_not_0")):
    _tags = _input("tags", form="open_grid", rows=500, combiner=_combiner)
    _add(f"module_padded_by_{_name}", "module", _tags, tower="dense", has_variant=True)
for _name, _form, _kind, _norm in (
    ("sparse_lookup", "sparse", "lookup_sparse", None),
    ("sparse_lookup_bounded", "sparse", "lookup_sparse", 2.0),
    ("sparse_lookup_fast", "sparse", "fast_lookup_sparse", None),
    ("sparse_safe", "sparse", "safe", None),
    ("sparse_safe_default_row", "sparse", "safe_default", None),
    ("sparse_safe_bounded", "sparse", "safe", 2.0),
    ("ragged_lookup", "ragged", "ragged_lookup_sparse", None),
    ("ragged_safe_of_sparse", "ragged", "safe", None),
    ("ragged_safe_default_row_of_sparse", "ragged", "safe_default", None),
):
    _inputs = [
        _input(
            f"{how}{'_weighted' * has_weights}",
            form=_form,  # type: ignore[arg-type]
            rows=500,
            table="t",
            combiner=f"{_kind}_{how}",
            weights=has_weights,
            max_norm=_norm,
        )
        for how in _COMBINERS
        for has_weights in (False, True)
    ]
    _add(_name, "module", *_inputs)

# Strings that are hashed, or found in a vocabulary.
for _name, _steps in (
    ("hashed_fast", (made.Hashed(800),)),
    ("hashed_strong", (made.Hashed(800, "strong"),)),
    ("hashed_by_crc", (made.Hashed(800, "crc"),)),
    ("hashed_fast_of_lower_case", (made.Recased("lower"), made.Hashed(800))),
    ("keyed_by_constants", (made.Vocabulary(_WORDS, 0, 800),)),
):
    _add(_name, "module", _input("word", "string", "rows", *_steps, rows=801), tower="dense", has_variant=True)
_add("keyed_by_integers", "module", _input("key", "int64", "rows", made.Vocabulary(_KEYS, 0, 800, True), rows=801))
_add(
    "hashed_of_integers",
    "module",
    _input("item", "int64", "ragged", made.AsText(), made.Hashed(800), rows=800, combiner="reduce_mean"),
)

# Tables of other dtypes, of many widths, and read by changed ids.
for _dtype in ("float16", "bfloat16", "float64"):
    _add(
        f"table_of_{_dtype}",
        "module",
        _input("item", table="items", saved=_dtype),
        _input("as_float", table="items", saved=_dtype, layer="cast_table"),
        _input("tag", form="ragged", rows=300, dim=8, saved=_dtype, combiner="reduce_mean"),
    )
_add(
    "table_read_by_shifted_ids",
    "module",
    _input("from_one", "int64", "rows", made.Shifted(-1), rows=500, table="t"),
    _input("modulo", "int64", "rows", made.Modulo(500), rows=500, table="t"),
    _input("clipped", "int64", "rows", made.Clipped(0, 499), rows=500, table="t"),
)
_add(
    "sequence_with_mean",
    "module",
    _input("history", "int32", "grid", rows=2000, table="items", combiner="mean"),
    _input("item", rows=2000, table="items"),
    tower="dense",
)
_small = [_input(f"small_{number}", rows=20 + number, dim=4 + number % 5) for number in range(40)]
_add("forty_small_tables", "module", *_small, tower="dense")

# TensorFlow 1: a graph and a session, with reference variables or partitioned ones.
_add("session_reference_variables", "session", _input("user"), tower="dense", has_variant=True)
_add("session_resource_variables", "session", _input("user"), tower="dense")
_add("session_rows_of_a_reference_variable", "session", _input("user", "int32"), has_variant=True)
for _strategy in ("div", "mod"):
    _add(f"session_partitioned_{_strategy}", "session", _input("user", parts=3, strategy=_strategy))
_tags = _input("tags", form="sparse", rows=500, dim=8, parts=4, combiner="safe_mean")
_add("session_partitioned_safe_mean", "session", _tags)
_add("session_segment_sum", "session", _input("tag", form="ragged", rows=500, dim=8, combiner="segment_sum"))
_add(
    "session_vocabulary",
    "session",
    _input("word", "string", "rows", made.Vocabulary(_WORDS[:400], 3, 0), rows=403, dim=8),
)

# Keras 3: embeddings, and layers that map keys to rows.
_add("keras3_embedding_of_one_id", "keras3", _input("item", rows=2000))
_add("keras3_embedding_of_a_column", "keras3", _input("item", "int32", "column", rows=2000))
_add("keras3_flat_embedding_of_a_column", "keras3", _input("item", "int32", "column", rows=2000), tower="concat")
_add("keras3_masked_mean", "keras3", _input("tags", form="open_grid", rows=500, dim=8, combiner="keras_masked_mean"))
_pair = (_input("seen", rows=2000, table="items"), _input("offered", rows=2000, table="items"))
_add("keras3_shared_embedding", "keras3", *_pair, tower="dot")
_add("keras3_outputs_of_two_tables", "keras3", _input("user", rows=3000, dim=32), _input("item", rows=2000))
for _tower in ("none", "dense"):
    _end = "_tower" * (_tower == "dense")
    _layer(f"keras3_string_lookup{_end}", "string", "StringLookup", 801, _tower, vocabulary=_WORDS)
    _more: dict[str, Any] = {"vocabulary": _WORDS, "num_oov_indices": 5, "mask_token": b""}
    _layer(f"keras3_string_lookup_buckets{_end}", "string", "StringLookup", 806, _tower, **_more)
    _layer(f"keras3_integer_lookup{_end}", "int64", "IntegerLookup", 801, _tower, vocabulary=_KEYS)
    _more = {"vocabulary": _KEYS, "num_oov_indices": 4, "mask_token": 0}
    _layer(f"keras3_integer_lookup_buckets{_end}", "int64", "IntegerLookup", 805, _tower, **_more)
    _layer(f"keras3_hashing{_end}", "string", "Hashing", 800, _tower, num_bins=800)
    _layer(f"keras3_hashing_salted{_end}", "string", "Hashing", 800, _tower, num_bins=800, salt=(133, 137))
    _layer(f"keras3_hashing_mask{_end}", "string", "Hashing", 800, _tower, num_bins=800, mask_value=b"")
    _layer(f"keras3_hashing_of_integers{_end}", "int64", "Hashing", 800, _tower, num_bins=800)
_lookup = made.KerasLayer("StringLookup", (("vocabulary", _WORDS), ("mask_token", b"")))
_add(
    "keras3_mean_of_words",
    "keras3",
    _input("words", "string", "open_grid", _lookup, rows=802, dim=8, combiner="keras_masked_mean"),
    _input("item", dim=8),
    tower="dense",
)

_add(
    "tf_keras_string_lookup_and_masked_mean",
    "tf_keras",
    _input("word", "string", "rows", made.KerasLayer("StringLookup", (("vocabulary", _WORDS),)), rows=801, dim=8),
    _input("tags", form="grid", rows=500, dim=8, combiner="keras_masked_mean"),
    tower="dense",
)

# Small models that a description by trial keys once got wrong: one key apart, normalized keys, padded tables.
_more = {"vocabulary": (101, 205, 309), "mask_token": 0}
_layer("special_keys_integer_lookup_mask_0", "int64", "IntegerLookup", 5, dim=4, **_more)
_more = {"vocabulary": (b"a", b"b"), "mask_token": b"[PAD]"}
_layer("special_keys_string_lookup_mask_pad", "string", "StringLookup", 4, dim=4, **_more)
_layer("special_keys_hashing_mask_0", "int64", "Hashing", 8, dim=4, num_bins=8, mask_value=0)
_layer("special_keys_hashing_mask_pad", "string", "Hashing", 8, dim=4, num_bins=8, mask_value=b"[PAD]")
for _name, _dtype, _rows, _steps in (
    ("special_keys_hash_of_0_is_padding", "int64", 20, (made.Masked(0, 0, 1, made.TextHash(19)),)),
    ("special_keys_hash_of_minus_1_is_missing", "int64", 20, (made.Masked(-1, 0, 1, made.TextHash(19)),)),
    ("special_keys_hash_of_nan_is_missing", "string", 20, (made.Masked(b"nan", 0, 1, made.Hashed(19)),)),
    ("special_keys_one_id_is_retired", "int64", 1000, (made.Retired(417, 3),)),
    (
        "special_keys_dashes_before_a_vocabulary",
        "string",
        20,
        (made.Replaced("-", "", (b"-",)), made.Vocabulary((b"ab12", b"x"), 3, 0)),
    ),
    ("special_keys_dashes_are_removed", "string", 20, (made.Replaced("-", "", (b"ab-12", b"-")), made.Hashed(20))),
    (
        "special_keys_scheme_is_removed",
        "string",
        20,
        (made.Replaced("^https?://", "", (b"https://a.org", b"http://")), made.Hashed(20)),
    ),
    (
        "special_keys_signs_become_underscores",
        "string",
        20,
        (made.Replaced("[-./]", "_", (b"-", b".", b"/")), made.Vocabulary((b"a_b", b"c_d"), 3, 0)),
    ),
    # The table has more rows than the graph's ids: the last rows belong to no id.
    ("disproved_lookup_padded_table", "int64", 1024, (made.Bounded(0, 1000, 0),)),
    ("large_tables_clamped_65536", "int64", 65_536, (made.Clipped(0, 65_535),)),
    ("large_tables_clamped_65537", "int64", 65_537, (made.Clipped(0, 65_536),)),
    ("large_tables_unknown_is_last_row_65536", "int64", 65_536, (made.Bounded(0, 65_536, 65_535),)),
    ("large_tables_unknown_is_last_row_65537", "int64", 65_537, (made.Bounded(0, 65_537, 65_536),)),
    ("unseen_lookups_int64_ids_cast_to_int32", "int64", 200, (made.CastTo("int32"),)),
    ("unseen_lookups_uint64_hashes_modulo", "uint64", 200, (made.Modulo(200), made.CastTo("int64"))),
    ("unseen_lookups_uint32_ids", "uint32", 200, (made.CastTo("int64"),)),
    ("unseen_lookups_text_of_ids_hashed", "int64", 200, (made.AsText(), made.Hashed(200))),
):
    _add(_name, "module", _input("key", _dtype, "rows", *_steps, rows=_rows, dim=4))
for _rows in (65_536, 65_537):
    _add(f"large_tables_embedding_{_rows}", "keras3", _input("key", rows=_rows, dim=4))
for _name, _dtype, _special in (
    ("mixed_bfloat16", "int64", "mixed_bfloat16"),
    ("default_input_dtype", "float32", ""),
    ("quantized_to_int8", "int64", "int8"),
    ("lora", "int64", "lora"),
):
    _add(f"unseen_lookups_{_name}", "keras3", _input("key", _dtype, "grid", rows=60, dim=4, layer=_special))
