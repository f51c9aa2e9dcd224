"""Specs of features, tables and configurations are checked, and follow TensorFlow 2.15."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from model_export.spec.embedding_config_spec import SUPPORTED_COLUMNS, EmbeddingConfigSpec
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from model_export.spec.optimization_parameters import AdagradParameters, AdamParameters
from model_export.spec.table_config import FeatureConfig, TableConfig

TABLE = TableSpec("film", 4, 2)


def with_vocabulary(keys: tuple[str, ...], **options: Any) -> ModelSpec:
    """Returns a model with one feature, which has a vocabulary."""
    return ModelSpec((TABLE,), (FeatureSpec("a", "film", vocabulary=VocabularySpec(keys, **options)),))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TableSpec("a/b", 4, 2), "letters, digits and _"),
        (lambda: TableSpec("film", 0, 2), "holds no numbers"),
        (lambda: TableSpec("film", 4, 0), "holds no numbers"),
        (lambda: TableSpec("film", 4, 2, combiner="max"), "combiner is 'max'"),  # type: ignore[arg-type]
        (lambda: VocabularySpec(("a", "a")), "rows 0 and 1 have the same key 'a'"),
        (lambda: VocabularySpec(("a\nb",)), "a line feed ends a line"),
        (lambda: VocabularySpec(("a", "b\ud83d"), 4), r"the key of row 5 is 'b.ud83d', and half of a surrogate pair"),
        (lambda: VocabularySpec((4, 7, 4), 1), "rows 1 and 3 have the same key 4"),
        (lambda: VocabularySpec(("",)), "empty"),
        (lambda: VocabularySpec(()), "at least one"),
        (lambda: VocabularySpec(("a", 1)), "all strings or all integers"),
        (lambda: VocabularySpec(("a",), oov_id=0, num_oov_buckets=1), "either oov_id or num_oov_buckets"),
        (lambda: with_vocabulary(("a", "b", "c", "d", "e")), "reaches row 4, table 'film' has 4 rows"),
        (lambda: with_vocabulary(("a", "b"), num_oov_buckets=3), "reaches row 4"),
        (lambda: with_vocabulary(("a",), on_oov="drop"), "on_bad_id must too, not 'error'"),
        (lambda: FeatureSpec("a", "film", vocabulary=VocabularySpec((1, 2)), sends_rows=True), "vocabulary of strings"),
        (lambda: FeatureSpec("a", "film", max_sequence_length=2), "max_sequence_length is 2"),
        (lambda: FeatureSpec("a", "film", on_bad_id="ignore"), "on_bad_id is 'ignore', expected one of"),
        (lambda: ModelSpec((TABLE,), (FeatureSpec("a", "film", default_id=4),)), "default_id 4 is not in its table"),
        (lambda: FeatureSpec("1st", "film"), "letters, digits and _"),
        (lambda: FeatureSpec("a__values", "film"), "__ separates"),
        (lambda: FeatureSpec("a", "film", max_ids_per_row=2), "max_ids_per_row is 2"),
        (lambda: FeatureSpec("a", "film", is_ragged=True, max_ids_per_row=0), "max_ids_per_row is 0"),
        (lambda: ModelSpec((TABLE,), (FeatureSpec("a", "user"),)), "'user', which is not declared"),
        (lambda: ModelSpec((TABLE,), ()), "no feature uses"),
        (lambda: ModelSpec((TABLE, TABLE), (FeatureSpec("a", "film"),)), "same name"),
        (lambda: ModelSpec((TABLE,), (FeatureSpec("a", "film"), FeatureSpec("a", "film"))), "same name"),
    ],
)
def test_a_bad_declaration_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_input_names() -> None:
    single, bag = FeatureSpec("a", "film"), FeatureSpec("b", "film", is_ragged=True)
    assert (single.ids_input, single.row_splits_input, single.weights_input) == ("a", None, None)
    assert (bag.ids_input, bag.row_splits_input, bag.weights_input) == ("b__values", "b__row_splits", "b__weights")


def rate(step: Any) -> float:
    """Returns a constant learning rate for any step."""
    return 0.5


def test_a_table_configs_arguments_are_those_of_2_15() -> None:
    empty = inspect.Parameter.empty
    assert [(p.name, p.default) for p in inspect.signature(TableConfig).parameters.values()] == [
        ("vocabulary_size", empty),
        ("dimension", empty),
        ("initializer", None),
        ("combiner", "mean"),
        ("hot_id_replication", False),
        ("learning_rate", None),
        ("learning_rate_fn", None),
        ("optimization_parameters", None),
    ]
    assert [(p.name, p.default) for p in inspect.signature(FeatureConfig).parameters.values()] == [
        ("table_id", empty),
        ("max_sequence_length", 0),
        ("weight_key", None),
    ]


TEXTS_OF_2_15: list[tuple[dict[str, Any], str]] = [
    ({"vocabulary_size": 0}, "vocabulary_size must >= 1. Received: 0."),
    ({"vocabulary_size": 2.5}, "vocabulary_size must >= 1. Received: 2.5."),
    ({"dimension": 0}, "dimension must be a positive int. Received: 0."),
    ({"dimension": 2.5}, "dimension must be a positive int. Received: 2.5."),
    ({"initializer": "zeros"}, "initializer must be callable if specified. Received: zeros."),
    ({"combiner": "max"}, 'combiner must be "mean", "sum", "sqrtn" or None. Received: max.'),
    (
        {"learning_rate": 0.1, "learning_rate_fn": rate},
        f"At most one of learning_rate and learning_rate_fn can be None. Received: 0.1 and {rate}",
    ),
    ({"learning_rate_fn": 0.5}, "learning_rate_fn must be callable if specified. Received: 0.5."),
    (
        {"optimization_parameters": "adam"},
        (
            "`optimization_parameters` must inherit from `_OptimizationParameters`. Received: "
            "`type(optimization_parameters)`=<class 'str'>."
        ),
    ),
]


@pytest.mark.parametrize(("arguments", "text"), TEXTS_OF_2_15)
def test_a_bad_table_gets_the_text_of_2_15(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        TableConfig(**{"vocabulary_size": 4, "dimension": 2, **arguments})


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn", None])
def test_every_combiner_is_kept(combiner: Any) -> None:
    assert TableConfig(4, 2, combiner=combiner).combiner == combiner


def test_what_a_tpu_alone_uses_is_kept() -> None:
    assert TableConfig(4, 16).initial_stddev == 0.25
    assert TableConfig(4, 2, hot_id_replication=True).hot_id_replication is True
    assert TableConfig(4, 2, optimization_parameters=AdagradParameters(0.1)).optimization_parameters is not None


@pytest.mark.parametrize("length", [-1, 1.5, "2"])
def test_a_bad_sequence_length_gets_the_text_of_2_15(length: Any) -> None:
    text = f"^max_sequence_length must be zero or a positive int, got {re.escape(str(length))}.$"
    with pytest.raises(ValueError, match=text):
        FeatureConfig("film", max_sequence_length=length)


def test_a_feature_keeps_its_arguments() -> None:
    feature = FeatureConfig("film", 5, "weight")
    assert (feature.table_id, feature.max_sequence_length, feature.weight_key) == ("film", 5, "weight")


FEATURES = {"liked": FeatureConfig("film")}
TABLES = {"film": TableConfig(4, 2)}
DICTS: dict[str, Any] = {"feature_to_config_dict": FEATURES, "table_to_config_dict": TABLES}
ADAGRAD = AdagradParameters(0.1)


def test_arguments_order_and_defaults_are_those_of_2_15() -> None:
    assert [(p.name, p.default) for p in inspect.signature(EmbeddingConfigSpec).parameters.values()] == [
        ("feature_columns", None),
        ("optimization_parameters", None),
        ("clipping_limit", None),
        ("pipeline_execution_with_tensor_core", False),
        ("experimental_gradient_multiplier_fn", None),
        ("feature_to_config_dict", None),
        ("table_to_config_dict", None),
        ("partition_strategy", "div"),
        ("profile_data_directory", None),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"feature_columns": []},
        {"feature_to_config_dict": FEATURES},
        {"table_to_config_dict": TABLES},
        {"feature_columns": ["column"], **DICTS},
        {"feature_columns": ["column"], "feature_to_config_dict": FEATURES},
        {"feature_columns": ["column"], "table_to_config_dict": TABLES},
    ],
    ids=["nothing", "no column", "features only", "tables only", "all", "columns, features", "columns, tables"],
)
def test_columns_or_both_dicts_are_given_never_both_nor_one_of_the_dicts(arguments: dict[str, Any]) -> None:
    text = (
        "Exactly one of `feature_columns` and the pair `feature_to_config_dict` and `table_to_config_dict` must be "
        "be specified."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        EmbeddingConfigSpec(optimization_parameters=ADAGRAD, **arguments)


def test_a_column_of_another_type_is_refused() -> None:
    text = f"All feature columns must be supported types in {SUPPORTED_COLUMNS}. Got <class 'str'>"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        EmbeddingConfigSpec(["column"], ADAGRAD)


@pytest.mark.parametrize("parameters", ["adagrad", AdagradParameters])
def test_parameters_of_another_type_are_refused(parameters: Any) -> None:
    text = rf"^optimization_parameters must be an instance of type .*AdamParameters.* Got {type(parameters)}\.$"
    with pytest.raises(ValueError, match=text):
        EmbeddingConfigSpec(optimization_parameters=parameters, **DICTS)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"feature_to_config_dict": {"a": "film"}},
            TypeError,
            "Config for feature a must be of type `FeatureConfig`. Got <class 'str'>",
        ),
        (
            {"table_to_config_dict": {"film": 4}},
            TypeError,
            "Config for table film must be of type `TableConfig`. Got <class 'int'>",
        ),
        ({"partition_strategy": "hash"}, ValueError, 'Invalid partition_strategy hash. Must be one of "mod" or "div".'),
        ({"clipping_limit": 0}, ValueError, "clipping_limit is 0, expected a number above 0, or None"),
        ({"clipping_limit": -1.0}, ValueError, "clipping_limit is -1.0, expected a number above 0, or None"),
        ({"clipping_limit": float("nan")}, ValueError, "clipping_limit is nan, expected a number above 0, or None"),
    ],
)
def test_a_bad_spec_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        EmbeddingConfigSpec(**{**DICTS, **arguments})


def test_a_feature_without_its_table_is_refused() -> None:
    text = "^Feature a refers to table user which is not in the table_to_config_dict.$"
    with pytest.raises(ValueError, match=text):
        EmbeddingConfigSpec(feature_to_config_dict={"a": FeatureConfig("user")}, table_to_config_dict=TABLES)


def test_a_table_without_a_feature_is_refused() -> None:
    text = "^`table_to_config_dict` specifies table that is not used in `feature_to_config_dict`: {'user'}.$"
    with pytest.raises(ValueError, match=text):
        EmbeddingConfigSpec(feature_to_config_dict=FEATURES, table_to_config_dict={**TABLES, "user": TableConfig(3, 2)})


def test_a_gradient_multiplier_is_a_function() -> None:
    with pytest.raises(TypeError, match="^experimental_gradient_multiplier_fn is 0.5, expected a function"):
        EmbeddingConfigSpec(experimental_gradient_multiplier_fn=0.5, **DICTS)  # type: ignore[arg-type]


def test_a_tables_own_parameters_go_before_the_specs() -> None:
    adam = AdamParameters(0.2)
    spec = EmbeddingConfigSpec(optimization_parameters=ADAGRAD, **DICTS)
    assert spec.parameters_of(TABLES["film"]) is ADAGRAD
    assert spec.parameters_of(TableConfig(4, 2, optimization_parameters=adam)) is adam


def test_a_table_that_nothing_trains_is_refused_when_asked_for() -> None:
    spec = EmbeddingConfigSpec(**DICTS)
    with pytest.raises(ValueError, match="^`optimization_parameters` is missing.$"):
        spec.parameters_of(TABLES["film"])
