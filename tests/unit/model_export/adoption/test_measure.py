"""Adopted signatures are timed on inputs that both versions answer alike, and then served in the faster way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact.protos import message_class
from service.artifact.tensor_proto import decode_tensor
from service.core.native_servable import compile_native
from service.process import trial
from service.process.trial import Answer, Rates
from tests.toy_model import manifest_of
from tests.unit.model_export.late import late

with late():
    from model_export.adoption import measure
    from model_export.adoption.summary import Served

pytestmark = [pytest.mark.tf, pytest.mark.core]


def outputs(answer: bytes) -> dict[str, Any]:
    """Decodes a PredictResponse to arrays by output name."""
    response = message_class("tensorflow.serving.PredictResponse").FromString(answer)
    return {name: decode_tensor(name, tensor) for name, tensor in response.outputs.items()}


def timed(tower_version: Path, compare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Served]:
    """Returns how `measured` serves each signature if `compare` stands for the comparison of rates."""
    manifest = manifest_of(tower_version)
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


def test_cut_forms_are_timed_in_the_native_core(tower_version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_of_python: list[str] = []
    run_whole = trial.Trial._run_whole

    def asked(self: trial.Trial, name: str, request: bytes) -> bytes:
        asked_of_python.append(name)
        return run_whole(self, name, request)

    monkeypatch.setattr(trial.Trial, "_run_whole", asked)

    def compare(adopted: Answer, original: Answer, requests: Mapping[int, bytes], *, turns: int) -> dict[int, Rates]:
        before = len(asked_of_python)
        for request in requests.values():
            assert outputs(adopted(request))
        assert len(asked_of_python) == before
        return {rows: Rates(1e3, 1e3) for rows in requests}

    assert timed(tower_version, compare, monkeypatch)["serving_default"].entry.run == "cut"


def equal(adopted: Answer, original: Answer, requests: Mapping[int, bytes], *, turns: int) -> dict[int, Rates]:
    """Finds equal rates, without a measurement."""
    return {rows: Rates(1e3, 1e3) for rows in requests}


def test_a_form_that_the_core_does_not_run_is_not_chosen(tower_version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forwarding(*args: Any, **more: Any) -> Any:
        servable = compile_native(*args, **more)
        if "serving_default" not in servable.signatures:
            # These are features, which a load looks up to compare them with the graph.
            return servable
        return replace(servable, not_run={**servable.not_run, "serving_default": "its graph has sparse inputs"})

    monkeypatch.setattr(trial, "compile_native", forwarding)
    score = timed(tower_version, equal, monkeypatch)["serving_default"]
    assert score.entry.run == "whole" and score.compared == 0
    assert score.reason.endswith("its lookups are not cut out: its graph has sparse inputs")


def test_without_the_core_no_lookups_are_cut_out(tower_version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "has_core", lambda: False)
    score = timed(tower_version, equal, monkeypatch)["serving_default"]
    assert score.entry.run == "whole" and "the native core, which runs graphs without" in score.reason


def test_answers_are_compared_bit_by_bit() -> None:
    strings, same = np.array([b"a", b"b"], object), np.array([b"a", b"b"], object)
    assert measure._is_same(strings, same) and not measure._is_same(strings, same[::-1])
    zero, negative = np.zeros(1, np.float32), -np.zeros(1, np.float32)
    assert measure._is_same(zero, zero.copy()) and not measure._is_same(zero, negative)
    assert not measure._is_same(zero, zero[:, None])
