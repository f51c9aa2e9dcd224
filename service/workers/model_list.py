"""A list of models as JSON, for the way to the other workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.core import errors
from service.core.errors import BackendFailure, ServiceError
from service.core.model_config import ModelConfig
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
            "wants_request_log": model.wants_request_log,
        }
        for model in models
    ]


def models_from_json(models: Sequence[dict[str, Any]]) -> tuple[ModelConfig, ...]:
    """Returns the models that models_to_json was given."""
    return tuple(ModelConfig(**(model | {"policy": _policy_from_json(model["policy"])})) for model in models)


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
