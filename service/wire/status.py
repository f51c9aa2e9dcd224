"""Encodes the states of a model's versions as GetModelStatusResponse and as the JSON of the REST API.

Source: tensorflow_serving/apis/{get_model_status,status}.proto (9d981c5).
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from service.artifact.protos import message_class
from service.types import VersionStatus


def encode_statuses(statuses: Iterable[VersionStatus]) -> bytes:
    """Encodes a GetModelStatusResponse."""
    response = message_class("tensorflow.serving.GetModelStatusResponse")()
    codes = response.DESCRIPTOR.fields_by_name["model_version_status"].message_type.fields_by_name["status"]
    code_numbers = codes.message_type.fields_by_name["error_code"].enum_type.values_by_name
    for status in statuses:
        entry = response.model_version_status.add()
        entry.version = status.version
        entry.state = int(status.state)
        entry.status.error_code = code_numbers[status.code].number
        entry.status.error_message = status.message
    return bytes(response.SerializeToString())


def statuses_json(statuses: Iterable[VersionStatus]) -> bytes:
    """Encodes the states of a model's versions as the JSON body of `GET /v1/models/{model}`."""
    return orjson.dumps(
        {
            "model_version_status": [
                {
                    "version": str(status.version),
                    "state": status.state.name,
                    "status": {"error_code": status.code, "error_message": status.message},
                }
                for status in statuses
            ]
        }
    )
