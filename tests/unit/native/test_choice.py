"""The native core answers if it is installed, else the reference server does, and the log says so in one line."""

from __future__ import annotations

from typing import Any

import pytest

from service.configuration.settings import Settings, StartError
from service.native.choice import with_data_plane


def chosen(*, is_installed: bool = True, **given: Any) -> Settings:
    """Returns the settings with which a server starts, given whether the core is installed."""
    return with_data_plane(Settings(model_base_path="m", **given), lambda: is_installed)


def test_the_core_is_taken_where_it_is_installed(caplog: pytest.LogCaptureFixture) -> None:
    assert chosen().data_plane == "core"
    assert chosen(data_plane="core").data_plane == "core"
    assert not caplog.records


def test_channel_arguments_choose_no_other_server_and_those_without_effect_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "grpc.max_receive_message_length=2000,grpc.lb_policy_name=x,grpc.keepalive_time_ms=1"
    assert chosen(grpc_channel_arguments=text).data_plane == "core"
    (record,) = caplog.records
    assert record.arguments == ["grpc.lb_policy_name", "grpc.keepalive_time_ms"]  # type: ignore[attr-defined]


def test_the_reference_says_that_it_is_slower_and_how_to_get_the_core(caplog: pytest.LogCaptureFixture) -> None:
    for given in ({"is_installed": False}, {"data_plane": "reference"}):
        caplog.clear()
        assert chosen(**given).data_plane == "reference"
        (record,) = caplog.records
        assert "many times slower" in record.message
        assert "pip install" in record.reason  # type: ignore[attr-defined]


def test_a_core_that_is_asked_for_and_missing_stops_the_start() -> None:
    with pytest.raises(StartError, match="native core is not installed"):
        chosen(is_installed=False, data_plane="core")
