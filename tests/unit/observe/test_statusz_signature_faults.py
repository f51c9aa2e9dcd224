"""The status page names signatures that are left to their graphs, and says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.configuration.settings import Settings
from service.observe.history import RecentRequests
from service.observe.request_metrics import Requests
from service.observe.statusz import Statusz
from tests.conftest import serving
from tests.toy_model import write_toy_model


def test_a_fault_of_a_signature_is_told(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["signatures"]["lookup"]["features"]["user"]["output"] = "u"

    write_toy_model(tmp_path / "1", edit_manifest=edit)
    registry = serving(tmp_path)
    document = Statusz(lambda: "1", Settings(), registry, RecentRequests(1.0), Requests).read()
    (version,) = document["models"]["toy"]["versions"]
    reason = "signature 'lookup' has no output 'u', which its manifest names"
    assert version["signature_faults"] == {"lookup": reason}
    assert version["signatures"]["lookup"] == "predict"
