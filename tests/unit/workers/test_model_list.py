"""Lists of models, and errors, on their way between processes."""

from __future__ import annotations

import json

import pytest
from service.workers.model_list import error_from_json, error_to_json, models_from_json, models_to_json

from service.core.errors import BackendFailure, ConfigConflict, ServiceError
from service.core.model_config import ModelConfig, RequestLogConfig
from service.core.version_policy import All, Latest, Specific, VersionPolicy


@pytest.mark.parametrize("policy", [Latest(3), All(), Specific(frozenset({2**62, 1}))], ids=repr)
def test_models_come_back_as_they_went(policy: VersionPolicy) -> None:
    models = (
        ModelConfig("a", "/a", policy, {"stable": 2**62}, "", RequestLogConfig("/l", 0.5, "file", ("x", "y"))),
        ModelConfig("b", "/b"),
    )
    assert models_from_json(json.loads(json.dumps(models_to_json(models)))) == models


def test_errors_keep_their_class_and_text() -> None:
    error = error_from_json(error_to_json(ConfigConflict("label")))
    assert type(error) is ConfigConflict and error.message == "label"


@pytest.mark.parametrize("name", ["NoSuchError", "ClassVar", "annotations"])
def test_an_error_that_nobody_knows_is_ours(name: str) -> None:
    error: ServiceError = error_from_json({"error": name, "message": "m"})
    assert type(error) is BackendFailure and error.message == "m"


def test_a_surprise_tells_what_it_was() -> None:
    assert error_to_json(KeyError("x")) == {"error": "BackendFailure", "message": "KeyError: 'x'"}
