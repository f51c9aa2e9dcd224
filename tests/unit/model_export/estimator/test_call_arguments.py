"""The estimator calls a user's functions with the arguments that they name."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.unit.model_export.late import late

with late():
    from model_export.estimator.estimator_spec import argument_names, call_input_fn, call_model_fn, check_model_fn


class Model:
    """A model_fn that is a callable object, or a method of one."""

    def __call__(self, features: Any, params: Any) -> tuple[Any, Any]:
        return features, params

    def build(self, features: Any, *, params: Any, mode: str) -> tuple[Any, Any, str]:
        return features, params, mode


def test_names_of_functions_methods_partials_and_callables() -> None:
    assert argument_names(lambda a, b, *rest, c=1, **more: None) == ("a", "b", "c")
    assert argument_names(Model().build) == ("features", "params", "mode")
    assert argument_names(Model()) == ("features", "params")
    assert argument_names(functools.partial(Model().build, mode="train")) == ("features", "params")
    assert argument_names(functools.partial(lambda first, second: None, 1)) == ("second",)


def test_functions_get_what_they_name() -> None:
    given: dict[str, Any] = {"params": {"n": 1}, "config": "config", "mode": "train"}
    assert call_input_fn(lambda params: params, **given) == {"n": 1}
    assert call_input_fn(lambda mode, params, config: (mode, config), **given) == ("train", "config")
    assert call_model_fn(Model().build, "f", None, **given) == ("f", {"n": 1}, "train")
    assert call_model_fn(lambda features, labels, params: labels, "f", None, **given) is None


def test_what_is_missing_is_named() -> None:
    given: dict[str, Any] = {"params": {}, "config": None, "mode": "train"}
    with pytest.raises(ValueError, match="input_fn .* does not include params argument"):
        call_input_fn(lambda mode: None, **given)
    with pytest.raises(ValueError, match="model_fn does not take labels"):
        call_model_fn(lambda features, params: None, "f", "l", **given)
    with pytest.raises(ValueError, match="model_fn must be provided and callable, got 3"):
        check_model_fn(3)
    check_model_fn(Model().build)
