"""EmbeddingConfigSpec takes 2.15's arguments, with its rules and errors."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest

from model_export.spec.embedding_config_spec import SUPPORTED_COLUMNS, EmbeddingConfigSpec
from model_export.spec.optimization_parameters import AdagradParameters, AdamParameters
from model_export.spec.table_config import FeatureConfig, TableConfig

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


def test_the_package_is_imported_without_tensorflow() -> None:
    code = (
        "import sys, model_export.spec.embedding_config_spec\n"
        "sys.exit('tensorflow' in sys.modules or 'tf_keras' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_both_strategies_are_kept(strategy: Any) -> None:
    assert EmbeddingConfigSpec(partition_strategy=strategy, **DICTS).partition_strategy == strategy


def test_another_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match=r'^Invalid partition_strategy hash. Must be one of "mod" or "div".$'):
        EmbeddingConfigSpec(partition_strategy="hash", **DICTS)  # type: ignore[arg-type]


def test_a_column_of_another_type_is_refused() -> None:
    text = f"All feature columns must be supported types in {SUPPORTED_COLUMNS}. Got <class 'str'>"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        EmbeddingConfigSpec(["column"], ADAGRAD)


@pytest.mark.parametrize("parameters", ["adagrad", AdagradParameters])
def test_parameters_of_another_type_are_refused(parameters: Any) -> None:
    text = rf"^optimization_parameters must be an instance of type .*AdamParameters.* Got {type(parameters)}\.$"
    with pytest.raises(ValueError, match=text):
        EmbeddingConfigSpec(optimization_parameters=parameters, **DICTS)


def test_a_feature_that_is_no_feature_config_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Config for feature a must be of type `FeatureConfig`. Got <class 'str'>$"):
        EmbeddingConfigSpec(feature_to_config_dict={"a": "film"}, table_to_config_dict=TABLES)  # type: ignore[dict-item]


def test_a_table_that_is_no_table_config_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Config for table film must be of type `TableConfig`. Got <class 'int'>$"):
        EmbeddingConfigSpec(feature_to_config_dict=FEATURES, table_to_config_dict={"film": 4})  # type: ignore[dict-item]


def test_a_feature_without_its_table_is_refused() -> None:
    text = "^Feature a refers to table user which is not in the table_to_config_dict.$"
    with pytest.raises(ValueError, match=text):
        EmbeddingConfigSpec(feature_to_config_dict={"a": FeatureConfig("user")}, table_to_config_dict=TABLES)


def test_a_table_without_a_feature_is_refused() -> None:
    text = "^`table_to_config_dict` specifies table that is not used in `feature_to_config_dict`: {'user'}.$"
    with pytest.raises(ValueError, match=text):
        EmbeddingConfigSpec(feature_to_config_dict=FEATURES, table_to_config_dict={**TABLES, "user": TableConfig(3, 2)})


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_clipping_limit_is_positive(limit: float) -> None:
    with pytest.raises(ValueError, match="^clipping_limit is .*, expected a number above 0, or None$"):
        EmbeddingConfigSpec(clipping_limit=limit, **DICTS)


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
