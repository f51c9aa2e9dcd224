"""Every flag of tensorflow_model_server is a setting, or is taken with a warning, or is refused with a reason."""

from __future__ import annotations

import dataclasses

import pytest

from service.configuration.settings import Settings
from service.configuration.settings_reading import FOREIGN_FLAGS, SettingsError, flags_without_effect, read_settings

BASE = ["--model_base_path=models/m"]
SETTINGS = {setting.name for setting in dataclasses.fields(Settings)}
# The flags of tensorflow_serving/model_servers/main.cc (9d981c5), in its order; without --version.
MAIN_CC = """
port grpc_socket_path rest_api_port rest_api_num_threads rest_api_timeout_in_ms rest_api_enable_cors_support
enable_batching allow_version_labels_for_unavailable_models batching_parameters_file
enable_per_model_batching_parameters model_config_file
model_config_file_poll_wait_seconds model_name model_base_path num_load_threads num_unload_threads max_num_load_retries
load_retry_interval_micros file_system_poll_wait_seconds flush_filesystem_caches tensorflow_session_parallelism
tensorflow_session_config_file tensorflow_intra_op_parallelism tensorflow_inter_op_parallelism use_alts_credentials
ssl_config_file platform_config_file per_process_gpu_memory_fraction saved_model_tags grpc_channel_arguments
grpc_max_threads enable_model_warmup num_request_iterations_for_warmup monitoring_config_file
remove_unused_fields_from_bundle_metagraph prefer_tflite_model num_tflite_pools num_tflite_interpreters_per_pool
enable_signature_method_name_check xla_cpu_compilation_enabled xla_gpu_compilation_enabled enable_profiler
thread_pool_factory_config_file mixed_precision skip_initialize_tpu enable_grpc_healthcheck_service
enable_serialization_as_tensor_content
""".split()
ASKING = {bool: "true", int: "2", float: "0.5", str: "/a.conf"}


def asking(name: str) -> str:
    """Returns a flag of TensorFlow Serving, with a value that asks for more than the flag's default."""
    flag = FOREIGN_FLAGS[name]
    return f"--{name}={'false' if flag.idle is True else ASKING[flag.kind]}"


def test_each_flag_of_tensorflow_serving_is_known_in_one_place() -> None:
    assert set(MAIN_CC) <= SETTINGS | FOREIGN_FLAGS.keys()
    assert FOREIGN_FLAGS.keys() <= set(MAIN_CC)
    assert not FOREIGN_FLAGS.keys() & SETTINGS, "what is a setting now is to be taken out of FOREIGN_FLAGS"


@pytest.mark.parametrize("name", [name for name, flag in FOREIGN_FLAGS.items() if not flag.is_refused])
def test_one_without_effect_changes_nothing_and_is_told(name: str) -> None:
    arguments = [*BASE, asking(name)]
    assert read_settings(arguments, {}) == read_settings(BASE, {})
    assert flags_without_effect(arguments) == {name: FOREIGN_FLAGS[name].why}


@pytest.mark.parametrize("name", [name for name, flag in FOREIGN_FLAGS.items() if flag.is_refused])
def test_one_that_can_not_be_left_out_stops_the_start(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings([*BASE, asking(name)], {})
    assert str(caught.value) == f"--{name} is not supported: {FOREIGN_FLAGS[name].why}"
    assert flags_without_effect([*BASE, asking(name)]) == {}


@pytest.mark.parametrize("name", FOREIGN_FLAGS)
def test_what_asks_for_nothing_is_taken_in_silence(name: str) -> None:
    flag = FOREIGN_FLAGS[name]
    idle = {bool: "true" if flag.idle is True else "false", int: "0", float: "0", str: ""}[flag.kind]
    assert read_settings([*BASE, f"--{name}={idle}"], {}) == read_settings(BASE, {})
    assert flags_without_effect([*BASE, f"--{name}={idle}"]) == {}


def test_a_switch_may_stand_alone() -> None:
    assert list(flags_without_effect([*BASE, "--enable_profiler"])) == ["enable_profiler"]


@pytest.mark.parametrize(
    ("argument", "fault"),
    [
        ("--enable_profiler=on", "--enable_profiler is 'on': expected true or false"),
        ("--num_unload_threads=x", "--num_unload_threads is 'x': expected a whole number"),
        ("--per_process_gpu_memory_fraction=x", "--per_process_gpu_memory_fraction is 'x': expected a number"),
    ],
)
def test_a_value_of_another_kind_is_a_fault(argument: str, fault: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings([*BASE, argument], {})
    assert str(caught.value) == fault


def test_the_version_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_settings(["--version"], {})
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("embedding-server ")
