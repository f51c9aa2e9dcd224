"""Lists of models are read from text, and from the message of a reload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.artifact.protos import fill_from_text, message_class
from service.engine.model_config import All, Latest, ModelConfig, RequestLogConfig, Specific, VersionPolicy
from service.errors import InvalidRequest, MalformedPayload
from service.wire.config_protos import decode_reload_request, encode_reload_response, parse_config_text

TEXT = """
# Commas, brackets and colons as TensorFlow Serving's own files have them.
model_config_list: {
  config: { name: "a", base_path: "/models/a", model_platform: "tensorflow" },
  config {
    name: 'b' base_path: '/models/b' model_type: TENSORFLOW
    model_version_policy { specific { versions: 3 versions: [4, 5] } }
    version_labels { key: "stable" value: 3 }
    version_labels { key: "canary" value: 5 }
  }
}
"""

BOTH = (
    r"^Illegal setting both ModelServerConfig::model_type \(deprecated\) and ModelServerConfig::model_platform, "
    "model name is m$"
)


def one(settings: str) -> ModelConfig:
    """Returns the only model of a list with these settings."""
    text = f'model_config_list {{ config {{ name: "m" base_path: "/m" {settings} }} }}'
    (config,) = parse_config_text(text, "models.conf") or ()
    return config


def test_a_file_lists_models_with_their_settings() -> None:
    assert parse_config_text(TEXT, "models.conf") == (
        ModelConfig("a", "/models/a"),
        ModelConfig("b", "/models/b", Specific(frozenset({3, 4, 5})), {"stable": 3, "canary": 5}),
    )


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", Latest(1)),
        ("model_version_policy {}", Latest(1)),
        ("model_version_policy { latest {} }", Latest(1)),
        ("model_version_policy { latest { num_versions: 3 } }", Latest(3)),
        ("model_version_policy { all {} }", All()),
        ("model_version_policy { specific {} }", Specific(frozenset())),
    ],
)
def test_each_version_policy(text: str, policy: VersionPolicy) -> None:
    assert one(text).policy == policy


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_is_no_list_and_an_empty_list_is_one(text: str) -> None:
    assert parse_config_text(text, "models.conf") is None
    assert parse_config_text("model_config_list {}", "models.conf") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("improperly formatted file", r"^Invalid protobuf file: 'models.conf': 1:1 : "),
        ("model_config_list { config { nmae: 'm' } }", r'models.conf\': 1:30 : .*no field named "nmae"'),
        ("model_config_list { config { name: 'm' name: 'n' } }", "models.conf': 1:46 : .*should not have multiple"),
        (
            "custom_model_config { type_url: 'x' }",
            "^custom_model_config is not supported; list the models in a model_config_list.$",
        ),
    ],
)
def test_what_is_no_list_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_config_text(text, "models.conf")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('model_type: TENSORFLOW model_platform: "tensorflow"', BOTH),
        ("model_type: OTHER", "^ModelServerConfig::model_type choice 2 not supported.$"),
    ],
)
def test_the_platform_may_be_an_old_number_but_not_both(settings: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        one(settings)
    assert one("model_type: TENSORFLOW").platform == "tensorflow"
    assert one("").platform == ""


def test_request_logging_is_read() -> None:
    assert one("").request_log is None
    collector = 'log_collector_config { type: "file" filename_prefix: "/logs/m" }'
    assert one(f"logging_config {{ {collector} sampling_config {{ sampling_rate: 0.5 }} }}").request_log == (
        RequestLogConfig("/logs/m", 0.5, "file")
    )
    odd = one("logging_config { sampling_config { attributes: 2 } custom_logging_config {} }").request_log
    assert odd == RequestLogConfig("", 0.0, "", ("custom_logging_config", "attributes"))


def test_remote_tables_stand_in_lines_that_tensorflow_serving_reads_as_comments() -> None:
    own = """
  #@ remote_tables: "user=valkey://a:1,b:2?timeout_ms=5"
    #@ remote_tables: "film=valkey://a"
    version_labels { key: "stable" value: 3 }
"""
    found = one(own)
    assert found.remote_tables == ("user=valkey://a:1,b:2?timeout_ms=5", "film=valkey://a")
    assert found.labels == {"stable": 3}
    # Only a comment that begins with "#@" has settings, and TensorFlow Serving's text parser ignores it, as any
    # comment.
    assert one(own.replace("#@", "#")).remote_tables == ()
    message = message_class("tensorflow.serving.ModelServerConfig")()
    fill_from_text(message, f'model_config_list {{ config {{ name: "m" {own} }} }}')
    assert message.model_config_list.config[0].version_labels == {"stable": 3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('\n#@ remote_table: "user=valkey://a"\n', r"2:4 : .* has no field named \"remote_table\""),
        ('\n#@ remote_tables: "user=valkey://a?x=1"\n', "^Model m: remote_tables: .* option 'x' is none of"),
        ('\nremote_tables: "user=valkey://a"\n', 'has no field named "remote_tables"'),
    ],
)
def test_remote_tables_that_can_not_be_read_are_refused(settings: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        one(settings)


def test_tensorflow_servings_own_files(tf_serving_testdata: Path) -> None:
    good = parse_config_text((tf_serving_testdata / "good_model_config.txt").read_text(), "good")
    assert good is not None
    assert [(config.name, config.platform) for config in good] == [
        ("half_plus_two", "tensorflow"),
        ("half_plus_three", "tensorflow"),
    ]
    with pytest.raises(InvalidRequest):
        parse_config_text((tf_serving_testdata / "bad_model_config.txt").read_text(), "bad")


def request(**fields: Any) -> bytes:
    """Returns a ReloadConfigRequest."""
    message = message_class("tensorflow.serving.ReloadConfigRequest")(**fields)
    return bytes(message.SerializeToString())


def test_a_reload_lists_models_as_a_file_does() -> None:
    listed = {"model_config_list": {"config": [{"name": "m", "base_path": "/m", "model_platform": "tensorflow"}]}}
    parsed = decode_reload_request(request(config=listed, metric_names=["x", "y"]))
    assert parsed.models == (ModelConfig("m", "/m"),)
    assert parsed.metric_names == ("x", "y")
    assert decode_reload_request(request(config={"model_config_list": {}})).models == ()


@pytest.mark.parametrize("data", [request(), request(config={}), request(config={"custom_model_config": {}})])
def test_another_kind_of_config_is_refused_in_tensorflow_servings_words(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_reload_request(data)
    assert caught.value.message == (
        "ServerModelConfig type not supported by HandleReloadConfigRequest. Only ModelConfigList is currently supported"
    )
    with pytest.raises(MalformedPayload):
        decode_reload_request(b"\xff\xff")


def test_the_answer_is_ok_and_names_the_metrics_that_were_asked_for() -> None:
    response = message_class("tensorflow.serving.ReloadConfigResponse").FromString(encode_reload_response(["b", "a"]))
    assert response.HasField("status")
    assert (response.status.error_code, response.status.error_message) == (0, "")
    assert [(metric.name, metric.int64_value_increase) for metric in response.metric] == [("a", 0), ("b", 0)]
