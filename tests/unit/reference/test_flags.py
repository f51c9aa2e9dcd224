"""The reference server follows a few settings, refuses those it can not keep, and names the rest in one warning."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from service.configuration.settings import Settings, StartError
from service.engine.model_config import ModelConfig, RequestLogConfig
from service.reference.models import FOLLOWED, REFUSED, check_models, check_settings


def settings(**given: Any) -> Settings:
    """Returns settings with a base path."""
    return Settings(model_base_path="m", **given)


def test_the_lists_name_settings_and_none_twice() -> None:
    known = {field.name for field in dataclasses.fields(Settings)}
    assert known >= FOLLOWED | REFUSED.keys()
    assert not FOLLOWED & REFUSED.keys()


def test_each_refused_setting_is_named_in_one_sentence() -> None:
    given = {
        "auth_config": "a.toml",
        "ssl_config_file": "s",
        "enable_batching": True,
        "remote_tables": "t=valkey://h:1",
    }
    with pytest.raises(StartError) as error:
        check_settings(settings(**given))
    text = str(error.value)
    assert text.count(".") == 1 and text.endswith(".")
    for name, what in (
        ("auth_config", "callers and rights"),
        ("ssl_config_file", "TLS"),
        ("enable_batching", "batching"),
        ("remote_tables", "tables in clusters"),
    ):
        assert f"{what} (--{name})" in text


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_setting_stops_the_start(name: str) -> None:
    values = {"table_lock": "require", "verify_tables": "before_available", "tracing": "otlp", "max_drift": 5.0}
    default = next(field.default for field in dataclasses.fields(Settings) if field.name == name)
    other = values.get(name, True if default is False else 1 if default == 0 else "x")
    with pytest.raises(StartError, match=f"--{name}"):
        check_settings(settings(**{name: other}))


def test_a_setting_that_asks_for_what_the_reference_does_is_none() -> None:
    check_settings(settings(verify_tables="off", table_lock="off"))
    with pytest.raises(StartError, match=r"graphs for a TPU \(--saved_model_tags\)"):
        check_settings(settings(saved_model_tags="serve,tpu"))


def test_other_settings_without_effect_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    check_settings(settings(port=1, max_queue_ms=7, hot_rows=False))
    (record,) = caplog.records
    assert record.flags == ["--max_queue_ms", "--hot_rows"]  # type: ignore[attr-defined]
    caplog.clear()
    check_settings(settings(grpc_max_threads=2))
    assert not caplog.records


def test_a_list_of_models_may_not_ask_for_logs_or_clusters() -> None:
    check_models([ModelConfig("m", "/m")])
    with pytest.raises(StartError, match="m has a logging_config"):
        check_models([ModelConfig("m", "/m", request_log=RequestLogConfig("/log", 1.0))])
    with pytest.raises(StartError, match="m has remote_tables"):
        check_models([ModelConfig("m", "/m", remote_tables=("t=valkey://h:1",))])
