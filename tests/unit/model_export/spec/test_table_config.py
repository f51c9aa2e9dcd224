"""TableConfig and FeatureConfig take 2.15's arguments, with its errors."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from model_export.spec.optimization_parameters import AdagradParameters
from model_export.spec.table_config import FeatureConfig, TableConfig


def rate(step: Any) -> float:
    """Returns a constant learning rate for any step."""
    return 0.5


def test_arguments_order_and_defaults_are_those_of_2_15() -> None:
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


def test_a_learning_rate_fn_has_to_be_a_function() -> None:
    with pytest.raises(ValueError, match=r"^learning_rate_fn must be callable if specified. Received: 0.5.$"):
        TableConfig(4, 2, learning_rate_fn=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn", None])
def test_every_combiner_is_kept(combiner: Any) -> None:
    assert TableConfig(4, 2, combiner=combiner).combiner == combiner


def test_the_standard_deviation_of_first_rows_goes_with_the_dimension() -> None:
    assert TableConfig(4, 16).initial_stddev == 0.25


def test_what_a_tpu_alone_uses_is_kept() -> None:
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
