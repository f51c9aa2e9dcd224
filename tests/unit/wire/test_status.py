"""Tests the answers with the states of versions, in JSON and in protobuf."""

from __future__ import annotations

import json

from service.artifact.protos import message_class
from service.types import State, VersionStatus
from service.wire.api import encode_statuses, statuses_json

_STATUSES = [VersionStatus(2, State.END, "FAILED_PRECONDITION", "corrupt"), VersionStatus(1, State.AVAILABLE)]


def test_every_state_has_its_number() -> None:
    statuses = [VersionStatus(n, state) for n, state in enumerate(State)]
    response = message_class("tensorflow.serving.GetModelStatusResponse").FromString(encode_statuses(statuses))
    assert [entry.state for entry in response.model_version_status] == [0, 10, 20, 30, 40, 50]


def test_codes_and_texts_are_kept_in_order() -> None:
    response = message_class("tensorflow.serving.GetModelStatusResponse").FromString(encode_statuses(_STATUSES))
    entries = [(e.version, e.status.error_code, e.status.error_message) for e in response.model_version_status]
    assert entries == [(2, 9, "corrupt"), (1, 0, "")]


def test_json_has_versions_as_strings_and_names_of_states() -> None:
    failed = {"error_code": "FAILED_PRECONDITION", "error_message": "corrupt"}
    assert json.loads(statuses_json(_STATUSES)) == {
        "model_version_status": [
            {"version": "2", "state": "END", "status": failed},
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
        ]
    }
