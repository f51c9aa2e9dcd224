"""A list of models as JSON, for the way to the other workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from service.core import errors
from service.core.errors import BackendFailure, ServiceError
from service.core.model_config import ModelConfig, RequestLogConfig
from service.core.version_policy import All, Latest, Specific, VersionPolicy


def models_to_json(models: Sequence[ModelConfig]) -> list[dict[str, Any]]:
    """Returns what models_from_json reads."""
    return [
        {
            "name": model.name,
            "base_path": model.base_path,
            "policy": _policy_to_json(model.policy),
            "labels": dict(model.labels),
            "platform": model.platform,
            "request_log": asdict(model.request_log) if model.request_log else None,
        }
        for model in models
    ]


def models_from_json(models: Sequence[dict[str, Any]]) -> tuple[ModelConfig, ...]:
    """Returns the models that models_to_json was given."""
    return tuple(_model_from_json(model) for model in models)


def _model_from_json(model: dict[str, Any]) -> ModelConfig:
    log = model["request_log"]
    if log is not None:
        log = RequestLogConfig(**(log | {"foreign": tuple(log["foreign"])}))
    return ModelConfig(**(model | {"policy": _policy_from_json(model["policy"]), "request_log": log}))


def _policy_to_json(policy: VersionPolicy) -> dict[str, Any]:
    match policy:
        case Latest(num_versions):
            return {"latest": num_versions}
        case All():
            return {"all": True}
        case Specific(versions):
            return {"specific": sorted(versions)}


def _policy_from_json(policy: dict[str, Any]) -> VersionPolicy:
    if "latest" in policy:
        return Latest(policy["latest"])
    return All() if "all" in policy else Specific(frozenset(policy["specific"]))


def error_to_json(error: Exception) -> dict[str, str]:
    """Returns an error's class, by name, and its text."""
    if isinstance(error, ServiceError):
        return {"error": type(error).__name__, "message": error.message}
    return {"error": BackendFailure.__name__, "message": f"{type(error).__name__}: {error}"}


def error_from_json(told: dict[str, str]) -> ServiceError:
    """Returns the error that was told; BackendFailure for one that this version does not know."""
    found = getattr(errors, told["error"], None)
    known = found if isinstance(found, type) and issubclass(found, ServiceError) else BackendFailure
    return known(told["message"])
