"""The native core answers if it is installed and the settings allow it; else Python does, and the log says why."""

from __future__ import annotations

from typing import Any

import pytest

from service.configuration.settings import Settings
from service.configuration.start_error import StartError
from service.native.choice import with_data_plane


def chosen(*, is_installed: bool = True, **given: Any) -> Settings:
    """Returns the settings with which a server starts, given whether the core is installed."""
    return with_data_plane(Settings(model_base_path="m", **given), lambda: is_installed)


def test_the_core_is_taken_where_it_is_installed() -> None:
    assert chosen().data_plane == "native"
    assert chosen(data_plane="python").data_plane == "python"


def test_python_stands_in_for_a_missing_core_and_says_how_to_get_it(caplog: pytest.LogCaptureFixture) -> None:
    assert chosen(is_installed=False).data_plane == "python"
    assert "pip install" in caplog.text
    with pytest.raises(StartError, match="native core is not installed"):
        chosen(is_installed=False, data_plane="native")


def test_settings_of_grpcio_keep_python(caplog: pytest.LogCaptureFixture) -> None:
    assert chosen(grpc_channel_arguments="grpc.max_connection_age_ms=1").data_plane == "python"
    assert "Python answers in place of the native core" in caplog.text
