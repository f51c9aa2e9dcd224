"""Checks which signatures can classify or regress. Each text is in cases/contract.json too."""

from __future__ import annotations

import numpy as np
import pytest

from service.engine.inference import CLASSIFY_METHOD, REGRESS_METHOD, Classification, result_of, wanted_outputs
from service.errors import InputMismatch, UnfitSignature, Unimplemented
from service.types import SignatureSpec, TensorSpec


def signature(inputs: str, outputs: str) -> SignatureSpec:
    """Returns a signature with inputs and outputs of these names."""

    def tensors(names: str) -> dict[str, TensorSpec]:
        return {name: TensorSpec(name, "string", None, f"{name}:0") for name in names.split()}

    return SignatureSpec("s", "predict", "", tensors(inputs), tensors(outputs), definition=lambda: "DEF")


@pytest.mark.parametrize(
    ("method", "outputs", "wanted"),
    [
        (CLASSIFY_METHOD, "classes", ("classes",)),
        (CLASSIFY_METHOD, "scores", ("scores",)),
        (CLASSIFY_METHOD, "scores classes", ("classes", "scores")),
        (CLASSIFY_METHOD, "scores else", ("scores",)),
        (REGRESS_METHOD, "outputs", ("outputs",)),
    ],
)
def test_outputs_that_are_asked_for(method: str, outputs: str, wanted: tuple[str, ...]) -> None:
    assert wanted_outputs(signature("inputs", outputs), method) == wanted


@pytest.mark.parametrize(
    ("method", "inputs", "outputs", "text"),
    [
        (CLASSIFY_METHOD, "inputs more", "scores", "Expected one input Tensor."),
        (CLASSIFY_METHOD, "inputs", "", "Expected one or two output Tensors, found 0"),
        (CLASSIFY_METHOD, "inputs", "a b c", "Expected one or two output Tensors, found 3"),
        (CLASSIFY_METHOD, "x", "scores", "No classification inputs found in SignatureDef: DEF"),
        (
            CLASSIFY_METHOD,
            "inputs",
            "y",
            (
                'Expected classification signature outputs to contain at least one of "classes" or "scores". '
                "Signature was: DEF"
            ),
        ),
        (REGRESS_METHOD, "inputs more", "outputs", "Expected one input Tensor."),
        (REGRESS_METHOD, "inputs", "outputs more", "Expected one output Tensor."),
        (REGRESS_METHOD, "x", "outputs", "No regression inputs found in SignatureDef: DEF"),
        (REGRESS_METHOD, "inputs", "y", "No regression outputs found in SignatureDef: DEF"),
    ],
)
def test_signatures_that_do_not_fit(method: str, inputs: str, outputs: str, text: str) -> None:
    with pytest.raises(UnfitSignature) as caught:
        wanted_outputs(signature(inputs, outputs), method)
    assert caught.value.message == text


def test_another_method() -> None:
    with pytest.raises(Unimplemented, match="^Unsupported signature method_name: other$"):
        wanted_outputs(signature("inputs", "outputs"), "other")


def test_results_are_flat_or_by_class() -> None:
    flat = result_of(REGRESS_METHOD, {"outputs": np.array([[1], [2]], np.float32)}, 2)
    assert flat.values.tolist() == [1.0, 2.0]  # type: ignore[union-attr]
    scores = np.array([[1, 2]], np.float32)
    classes = result_of(CLASSIFY_METHOD, {"scores": scores}, 1)
    assert isinstance(classes, Classification) and classes.labels is None and classes.scores is scores


SHAPES = "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        (np.zeros((2, 2), np.float32), SHAPES + "[2,2]"),
        (np.zeros((), np.float32), SHAPES + "[]"),
        (np.zeros(3, np.float32), "Input batch size did not match output batch size: 2 vs. 3"),
        (np.zeros(2, np.int64), "Expected output Tensor of DT_FLOAT.  Got: DT_INT64"),
    ],
)
def test_regressions_that_make_no_sense(outputs: np.ndarray, text: str) -> None:
    with pytest.raises(InputMismatch) as caught:
        result_of(REGRESS_METHOD, {"outputs": outputs}, 2)
    assert caught.value.message == text
