"""Configurations in the text form of protobuf are read, and their faults named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.artifact.protos import fill_from_text, message_class
from service.errors import InvalidRequest, MalformedPayload
from service.versions.model_config import All, Latest, ModelConfig, RequestLogConfig, Specific, VersionPolicy
from service.wire.config_protos import (
    BatchingParameters,
    PrometheusConfig,
    SslConfig,
    decode_reload_request,
    encode_reload_response,
    parse_batching_text,
    parse_config_text,
    parse_monitoring_text,
    parse_ssl_config_text,
)


def test_every_field() -> None:
    text = """
      max_batch_size { value: 16 }
      batch_timeout_micros { value: 500 }
      max_enqueued_batches { value: 7 }
      num_batch_threads { value: 3 }
      thread_pool_name: { value: "pool" }
      enable_large_batch_splitting { value: true }
      max_execution_batch_size { value: 8 }
      allowed_batch_sizes: 4
      allowed_batch_sizes: 16  # the last is max_batch_size
      pad_variable_length_inputs: true
    """
    assert parse_batching_text(text, "f") == BatchingParameters(
        max_batch_size=16,
        batch_timeout_micros=500,
        max_enqueued_batches=7,
        num_batch_threads=3,
        thread_pool_name="pool",
        enable_large_batch_splitting=True,
        max_execution_batch_size=8,
        allowed_batch_sizes=(4, 16),
        pad_variable_length_inputs=True,
    )


def test_what_is_left_out_has_its_default() -> None:
    assert parse_batching_text("", "f") == BatchingParameters()
    assert parse_batching_text("max_batch_size {value: 4}", "f") == BatchingParameters(max_batch_size=4)
    assert parse_batching_text("allowed_batch_sizes: [2, 1000]", "f").allowed_batch_sizes == (2, 1000)


def test_a_zero_that_is_written_is_no_default() -> None:
    with pytest.raises(InvalidRequest, match=r"f: num_batch_threads must be positive; was 0"):
        parse_batching_text("num_batch_threads { value: 0 }", "f")


@pytest.mark.parametrize("text", ["max_batch_size: 4", "no_such_field: 1", "max_batch_size {", "max_batch_size {} x"])
def test_what_is_no_such_message_is_refused_with_the_files_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^Invalid protobuf file: 'some/file'"):
        parse_batching_text(text, "some/file")


def test_values_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"last entry was 2; expected 1000"):
        parse_batching_text("allowed_batch_sizes: 2", "f")


def test_tensorflow_servings_own_test_file(tf_serving_testdata: Path) -> None:
    text = (tf_serving_testdata / "batching_config.txt").read_text()
    assert parse_batching_text(text, "f") == BatchingParameters(
        max_batch_size=128, batch_timeout_micros=0, max_enqueued_batches=1_000_000, num_batch_threads=8
    )


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
        ('{"model_config_list": []}', r"got {. \(it looks like JSON; expected protobuf's text form\)$"),
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


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ('prometheus_config {\n  enable: true,\n  path: "/monitoring/x"\n}\n', (True, "/monitoring/x")),
        ("prometheus_config { enable: true }", (True, "")),
        ("prometheus_config: < path: '/x' > # off", (False, "/x")),
        ("prometheus_config {}", (False, "")),
        ("", (False, "")),
        ("# nothing", (False, "")),
    ],
)
def test_reads_the_text(text: str, config: tuple[bool, str]) -> None:
    assert parse_monitoring_text(text, "m.conf") == PrometheusConfig(*config)


@pytest.mark.parametrize("text", ["prometheus_config", "enable: true", "prometheus_config { enable: 7 }", "{}", "\0"])
def test_what_is_no_monitoring_config_is_refused_with_the_file_and_the_place(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^Invalid protobuf file: 'm\.conf': \d+:\d+ : "):
        parse_monitoring_text(text, "m.conf")


SECRET = "MIGHAgEAMBMGByqGSM49"


@pytest.mark.parametrize(
    ("text", "config"),
    [
        (
            'server_key: "k\\n1"\nserver_cert: "c" "d"\ncustom_ca: \'a\'\nclient_verify: true\n',
            SslConfig("k\n1", "cd", "a", True),
        ),
        ('client_verify: false, server_key: "k"; # off', SslConfig("k", "")),
        ("", SslConfig("", "")),
    ],
)
def test_reads_the_text_of_tls(text: str, config: SslConfig) -> None:
    assert parse_ssl_config_text(text, "s.conf") == config


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f'server_cert: "c"\nserver_key: "{SECRET}', 2),
        (f"server_key: {SECRET}", 1),
        (f'server_keys: "{SECRET}"', 1),
        (f'client_verify: "{SECRET}"', 1),
        (f"-----BEGIN PRIVATE KEY-----\n{SECRET}", 1),
        (f'server_key: "{SECRET}"\n\nserver_key: "{SECRET}"', 3),
    ],
)
def test_a_fault_is_named_by_its_line_and_never_quoted(text: str, line: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_ssl_config_text(text, "s.conf")
    assert caught.value.message == f"Invalid protobuf file: 's.conf': line {line} is not an SSLConfig's text"
    # A traceback of the error does not show the secret line either.
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


def test_a_config_shows_no_key() -> None:
    assert SECRET not in repr(SslConfig(SECRET, "c"))


def test_the_defaults_are_tensorflow_servings() -> None:
    parameters = BatchingParameters()
    parameters.check()
    assert (parameters.max_batch_size, parameters.batch_timeout_micros, parameters.max_enqueued_batches) == (
        1000,
        0,
        10,
    )
    assert (parameters.batch_rows, parameters.thread_pool_name) == (1000, "batch_threads")


def test_split_batches_may_be_smaller_than_requests() -> None:
    parameters = BatchingParameters(max_batch_size=8, max_execution_batch_size=2)
    assert parameters.batch_rows == 8, "it counts only where requests are split, as in TensorFlow Serving"
    split = BatchingParameters(max_batch_size=8, max_execution_batch_size=2, enable_large_batch_splitting=True)
    split.check()
    assert split.batch_rows == 2
    assert split.document["max_execution_batch_size"] == 2
    assert parameters.document["max_execution_batch_size"] == 8
    assert BatchingParameters(max_batch_size=8, enable_large_batch_splitting=True).batch_rows == 8


def test_no_waiting_batch_may_be_given_unless_requests_are_split() -> None:
    BatchingParameters(max_enqueued_batches=0).check()


SPLIT = {"enable_large_batch_splitting": True}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_batch_size": 0}, "input_batch_size_limit must be positive; was 0 (the field max_batch_size)"),
        ({"batch_timeout_micros": -1}, "batch_timeout_micros must be non-negative; was -1"),
        ({"max_enqueued_batches": -1}, "max_enqueued_batches must be positive; was -1"),
        ({"max_enqueued_batches": 0} | SPLIT, "max_enqueued_batches must be positive; was 0"),
        ({"num_batch_threads": 0}, "num_batch_threads must be positive; was 0"),
        ({"max_execution_batch_size": 0} | SPLIT, "max_execution_batch_size must be positive; was 0"),
        (
            {"max_batch_size": 2, "max_execution_batch_size": 3} | SPLIT,
            (
                "When enable_large_batch_splitting is true, input_batch_size_limit must be greater than or equal to "
                "max_execution_batch_size; they were 2 and 3 (input_batch_size_limit is the field max_batch_size)"
            ),
        ),
        (
            {"max_batch_size": 8, "allowed_batch_sizes": (2, 4)},
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4; expected 8",
        ),
        *(
            (
                {"max_batch_size": 8, "allowed_batch_sizes": sizes},
                "allowed_batch_sizes entries must be monotonically increasing",
            )
            for sizes in ((4, 4, 8), (0, 8))
        ),
    ],
)
def test_what_can_not_be_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        BatchingParameters(**values).check()
    assert refused.value.message == text
