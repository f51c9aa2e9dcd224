"""A signature that the native core does not run is shown: as a notice, a metric and one line of the log."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.configuration.settings import Settings
from service.loading.feature_lookups import CompileNative
from service.loading.loader import ServableLoader
from service.observe.history import RecentRequests
from service.observe.own_metrics import core_lines
from service.observe.request_metrics import Requests
from service.observe.statusz import Statusz
from service.tables.backend import LookupBackend, OpenedLookups
from service.versions.registry import Registry
from service.versions.servable import Servable
from tests.toy_model import write_toy_model

pytest.importorskip("service._native", reason="the native core is not built")

from service.core.native_servable import compile_native

MESSAGE = "the native core does not run signatures"


def no_such_sum(lookups: OpenedLookups | None) -> OpenedLookups:
    """Returns lookups whose features name an order of additions that the core does not have."""
    assert lookups is not None
    plans = {
        name: plan._replace(
            features={
                key: replace(one, feature=replace(one.feature, summation="pairwise"))  # type: ignore[arg-type]
                for key, one in plan.features.items()
            }
        )
        for name, plan in lookups.backend.plans.items()
    }
    return replace(lookups, backend=LookupBackend(plans, lookups.backend.vocabularies))


def refused(servable: Servable, lookups: OpenedLookups | None, graphs: Any, **more: Any) -> Servable:
    """Compiles a servable whose description the core refuses."""
    return compile_native(servable, no_such_sum(lookups), graphs, **more)


REFUSED = "it can not compile the version: unknown variant `pairwise`"


@pytest.mark.parametrize(
    ("compiled", "names", "reason"),
    [(refused, "lookup, lookup_tpu_tensor_core", REFUSED), (compile_native, "", "")],
    ids=["a version", "nothing"],
)
def test_what_the_core_does_not_run_is_shown(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    compiled: CompileNative,
    names: str,
    reason: str,
) -> None:
    write_toy_model(tmp_path / "1")
    registry = Registry(lambda model, status: None)
    registry.add_model("toy")
    registry.start("toy", 1)
    with caplog.at_level(logging.INFO):
        load = ServableLoader(frozenset({"serve"}), "off", compiled)
        registry.publish(load("toy", 1, tmp_path / "1"))
    count = len(names.split(", ")) if names else 0
    assert core_lines(registry.loaded())[-1].endswith(f'{{model="toy",version="1"}} {count}.0')
    document = Statusz(lambda: "1", Settings(), registry, RecentRequests(1.0), Requests).read()
    notices = [one["message"] for one in document["attention"] if one["alert"] == "EmbeddingSignaturesNotRun"]
    assert len(notices) == bool(names)
    assert all(one.startswith(f"version 1: the native core does not run {names}: {reason}") for one in notices)
    # Of this model, only the predict needs TensorFlow, which nothing runs here; this is no fault of the core.
    (record,) = [one for one in caplog.records if one.message == MESSAGE]
    assert (record.levelno == logging.WARNING) == bool(names)
    assert reason in str(record.__dict__["signatures"])
