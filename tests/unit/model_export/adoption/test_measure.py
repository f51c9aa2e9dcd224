"""Adopted signatures are timed on inputs that both versions answer alike, and then served in the faster way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.adoption import measure
from model_export.adoption.summary import Served
from service.artifact.manifest import Manifest
from service.artifact.protos import message_class
from service.artifact.tensor_proto import decode_tensor
from service.graph.run_comparison import Rates
from service.native.choice import has_core
from service.process import trial
from service.process.trial import Answer

pytestmark = pytest.mark.tf


def outputs(answer: bytes) -> dict[str, Any]:
    """Decodes a PredictResponse to arrays by output name."""
    response = message_class("tensorflow.serving.PredictResponse").FromString(answer)
    return {name: decode_tensor(name, tensor) for name, tensor in response.outputs.items()}


def timed(tower_version: Path, compare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Served]:
    """Returns how `measured` serves each signature if `compare` stands for the comparison of rates."""
    manifest = Manifest.read(tower_version)
    assert manifest is not None
    monkeypatch.setattr(trial, "compare_runs", compare)
    served = {name: Served(entry) for name, entry in manifest.signatures.items()}
    return measure.measured(tower_version, manifest, served, lambda line: None)


@pytest.mark.parametrize(
    ("ratios", "run"), [((2.0, 2.0, 2.0), "cut"), ((2.0, 0.8, 2.0), "whole"), ((0.95, 1.0, 1.0), "cut")]
)
def test_a_predict_is_cut_where_that_is_slower_at_no_size(
    tower_version: Path, monkeypatch: pytest.MonkeyPatch, ratios: tuple[float, ...], run: str
) -> None:
    ratio_of = dict(zip((1, 32, 256), ratios, strict=True))
    sizes = []

    def compare(adopted: Answer, original: Answer, requests: Mapping[int, bytes], *, turns: int) -> dict[int, Rates]:
        sizes.append(list(requests))
        for request in requests.values():
            found, wanted = outputs(adopted(request)), outputs(original(request))
            assert found.keys() == wanted.keys()
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-6)
        return {rows: Rates(ratio_of[rows] * 1e3, 1e3) for rows in requests}

    found = timed(tower_version, compare, monkeypatch)
    score = found["serving_default"]
    assert score.entry.kind == "predict" and score.entry.run == run
    assert score.times is not None and score.times.before_s == 1e-3
    assert score.times.after_s == (1e-3 if run == "whole" else 1e-3 / ratios[-1])
    assert {one.entry.run for one in found.values() if one.entry.kind == "lookup"} <= {"cut"}
    # Each predict is timed at all sizes, and each lookup at the size whose times the summary shows.
    kinds = [one.entry.kind for one in found.values() if one.times is not None]
    assert sizes == [[1, 32, 256] if kind == "predict" else [256] for kind in kinds]


def test_signatures_are_timed_as_the_native_core_serves_them(
    tower_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_core():
        pytest.skip("the native core is not built here (no cargo)")
    asked_of_python = []
    monkeypatch.setattr(trial, "_reference", lambda servable: asked_of_python.append)

    def compare(adopted: Answer, original: Answer, requests: Mapping[int, bytes], *, turns: int) -> dict[int, Rates]:
        for request in requests.values():
            assert outputs(adopted(request))
        return {rows: Rates(1e3, 1e3) for rows in requests}

    timed(tower_version, compare, monkeypatch)
    assert asked_of_python == []
