"""Calls model_fn and input_fn with only those arguments that the user's function declares."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

_MODEL_FN_ARGUMENTS = {"features", "labels", "mode", "params", "config"}


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    if isinstance(function, functools.partial):
        bound = {*argument_names(function.func)[: len(function.args)], *function.keywords}
        return tuple(name for name in argument_names(function.func) if name not in bound)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds)


def takes_any_number(function: Callable[..., Any]) -> bool:
    """Says whether a function accepts any number of positional arguments (*args)."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


def check_model_fn(model_fn: Any) -> None:
    """Raises ValueError unless model_fn takes features and params, and besides them only labels, mode and config."""
    if not callable(model_fn):
        raise ValueError(f"model_fn must be provided and callable, got {model_fn!r}")
    names = argument_names(model_fn)
    if "features" not in names:
        raise ValueError(f"model_fn ({model_fn}) must include features argument.")
    if "params" not in names:
        raise ValueError(
            f"model_fn ({model_fn}) does not include params argument; the batch size comes as params['batch_size']"
        )
    unexpected = sorted(set(names) - _MODEL_FN_ARGUMENTS)
    if unexpected:
        raise ValueError(f"model_fn ({model_fn}) has following not expected args: {unexpected}")


def call_input_fn(input_fn: Callable[..., Any], *, params: dict[str, Any], config: Any, mode: str) -> Any:
    """Calls input_fn with those of params, config and mode that it declares; raises ValueError if it lacks `params`."""
    names = argument_names(input_fn)
    if "params" not in names:
        raise ValueError(
            f"input_fn ({input_fn}) does not include params argument; the batch size comes as params['batch_size']"
        )
    return input_fn(**_chosen(names, {"params": params, "config": config, "mode": mode}))


def call_model_fn(
    model_fn: Callable[..., Any], features: Any, labels: Any, *, params: dict[str, Any], config: Any, mode: str
) -> Any:
    names = argument_names(model_fn)
    if labels is not None and "labels" not in names:
        raise ValueError("model_fn does not take labels, but input_fn returns labels.")
    optional = {"labels": labels, "mode": mode, "params": params, "config": config}
    return model_fn(features=features, **_chosen(names, optional))


def _chosen(names: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
