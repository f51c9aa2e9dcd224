"""Settings are read from flags, the environment and files; TensorFlow Serving's flags have their meaning."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from service.configuration import settings as settings_module
from service.configuration import settings_reading
from service.configuration.control_groups import num_processors
from service.configuration.settings import COMMON, ENV_PREFIX, Settings
from service.configuration.settings_reading import (
    FOREIGN_FLAGS,
    SettingsError,
    flags_without_effect,
    prepare_libraries,
    read_settings,
    service_links,
)

BASE = ["--model_base_path=models/m"]
ROOT = Path(__file__).parents[3]
HINTS = get_type_hints(Settings)
NO_MODELS = "name a folder of models, or of the versions of one model, for example: embedding-server models/movielens"


def faults_of(arguments: list[str], environ: dict[str, str] | None = None) -> list[str]:
    """Returns the lines of the error for these settings."""
    with pytest.raises(SettingsError) as caught:
        read_settings(arguments, environ or {})
    return str(caught.value).splitlines()


def test_the_model_folder_is_all_that_must_be_given() -> None:
    assert read_settings(BASE, {}) == Settings(model_base_path="models/m")
    assert read_settings(["models", "--port=7", "more/films"], {}) == Settings(models="models,more/films", port=7)
    assert read_settings(["films"], {"EMB_MODELS": "models"}).model_folders == ("films",)
    assert faults_of([]) == [NO_MODELS]
    twice = "models are named in two ways, by the folder models and by --model_base_path: give one"
    assert faults_of(["models", *BASE]) == [twice]
    assert read_settings(["--model_config_file=m.conf"], {}) == Settings(model_config_file="m.conf")


@pytest.mark.parametrize(
    ("flags", "environ", "port"),
    [([], {}, 8500), ([], {"EMB_PORT": "1"}, 1), (["--port=2"], {}, 2), (["--port=2"], {"EMB_PORT": "1"}, 2)],
)
def test_flags_beat_the_environment_and_that_beats_defaults(
    flags: list[str], environ: dict[str, str], port: int
) -> None:
    assert read_settings([*BASE, *flags], environ).port == port


# Values of settings whose text has a form, or whose next number does not go with the defaults of others.
FORMED: dict[str, Any] = {
    "max_bytes_in_flight": 1 << 30,
    "admin_host": "::1",
    "grpc_channel_arguments": "a=1",
    "host": "::1",
    "port": 8400,
    "remote_tables": "user=valkey://a:1",
    "rest_api_cors_origins": "https://a.example",
    "saved_model_tags": "serve,tpu",
    "threads": "3",
}


def other_value(setting: dataclasses.Field[Any]) -> Any:
    """Returns a valid value of a setting that is not its default."""
    if setting.name in FORMED:
        return FORMED[setting.name]
    if isinstance(setting.default, bool):
        return not setting.default
    if isinstance(setting.default, str):
        return next((one for one in get_args(HINTS[setting.name]) if one != setting.default), "a b")
    return setting.default + (1 if setting.default < setting.metadata["high"] else -1)


def test_every_setting_is_a_flag_and_a_variable_and_says_what_it_means() -> None:
    for setting in dataclasses.fields(Settings):
        value, name = other_value(setting), setting.name
        text = str(value)
        assert value != setting.default, name
        base = [] if name == "models" else BASE
        by_flag = read_settings([*base, f"--{name}={text}"], {})
        variables = {"EMB_MODEL_BASE_PATH": "models/m"} if base else {}
        by_variable = read_settings([], {**variables, ENV_PREFIX + name.upper(): text})
        assert getattr(by_flag, name) == getattr(by_variable, name) == value, name
        assert type(getattr(by_flag, name)) is type(setting.default), name
        assert setting.metadata["about"].endswith("."), name
        if not isinstance(setting.default, (str, bool)):
            assert setting.metadata["low"] <= setting.default <= setting.metadata["high"], name


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--admin_port=auto", "--admin_host=0.0.0.0"], "--auth_config is required"),
        (["--admin_port=8502", "--admin_host=10.0.0.1"], "--auth_config is required"),
        (["--admin_port=8502", "--admin_host=::"], "--auth_config is required"),
        (["--admin_port=8502", "--admin_host=admin.example"], "--auth_config is required"),
        (["--admin_port=8500"], "must differ from --port"),
        (["--rest_api_cors_origins=https://a.example/,https://b.example"], "'https://a.example/': expected"),
        (["--rest_api_cors_origins=*"], "'*': expected"),
        (["--rest_api_cors_origins=https://a.example", "--rest_api_enable_cors_support"], "give one"),
    ],
)
def test_what_would_let_strangers_in_stops_the_start(arguments: list[str], told: str) -> None:
    (fault,) = faults_of([*BASE, *arguments], {})
    assert told in fault


@pytest.mark.parametrize(
    "arguments",
    [
        ["--admin_port=8502"],
        ["--admin_port=8502", "--admin_host=127.0.0.2"],
        ["--admin_port=8502", "--admin_host=::1"],
        ["--admin_port=auto", "--admin_host=localhost"],
        ["--admin_host=0.0.0.0"],
        ["--admin_port=8502", "--admin_host=0.0.0.0", "--auth_config=auth.toml"],
        ["--rest_api_cors_origins=https://a.example, http://localhost:3000"],
    ],
)
def test_what_lets_nobody_in_that_is_not_meant_does_not(arguments: list[str]) -> None:
    read_settings([*BASE, *arguments], {})


def test_an_unknown_variable_of_ours_stops_the_start_and_others_do_not() -> None:
    environ = {"EMB_PROT": "1", "EMB_": "", "EMB_port": "1", "PORT": "x", "emb_port": "x"}
    assert faults_of(BASE, environ) == [
        "EMB_ is not a setting of this server (see --help)",
        "EMB_PROT is not a setting of this server (see --help); did you mean EMB_PORT?",
        "EMB_port is not a setting of this server (see --help); did you mean EMB_PORT?",
    ]


def test_a_fault_names_the_variable_that_has_the_value() -> None:
    environ = {"EMB_PORT": "x", "EMB_LOG_LEVEL": "INFO", "EMB_REST_API_PORT": "70000", "EMB_ADMIN_PORT": "x"}
    assert faults_of([*BASE, "--admin_port=70001"], environ) == [
        "EMB_LOG_LEVEL is 'INFO': expected one of debug, info, warning, error",
        "EMB_PORT is 'x': expected a whole number, or 'auto'",
        "--admin_port is 70001: expected 0 to 65535",
        "EMB_REST_API_PORT is 70000: expected 0 to 65535",
    ]
    # Kubernetes has set this variable, and the port is the default.
    environ = {"EMB_PORT": "tcp://10.0.0.1:8500", "EMB_REST_API_PORT": "8500"}
    both = "--port and EMB_REST_API_PORT are both 8500: gRPC and HTTP need one each"
    assert faults_of(BASE, environ) == [both]


def links_of(service: str) -> dict[str, str]:
    """Returns the variables that Kubernetes puts into each pod of the namespace for a Service with a port 8500."""
    prefix = service.upper().replace("-", "_")
    url = "tcp://10.96.3.7:8500"
    values = {"": url, "_8500_TCP": url, "_8500_TCP_PROTO": "tcp", "_8500_TCP_PORT": "8500"}
    links = {f"{prefix}_PORT{name}": value for name, value in (values | {"_8500_TCP_ADDR": "10.96.3.7"}).items()}
    host = {f"{prefix}_SERVICE_HOST": "10.96.3.7", f"{prefix}_SERVICE_PORT": "8500"}
    return links | host | {f"{prefix}_SERVICE_PORT_GRPC": "8500"}


@pytest.mark.parametrize("service", ["emb", "emb-items", "emb-rest-api", "emb-admin", "emb-port-8500-tcp"])
def test_the_links_of_a_kubernetes_service_are_no_settings(service: str) -> None:
    links = links_of(service)
    assert read_settings(BASE, links) == read_settings(BASE, {})
    assert service_links(links | {"EMB_THREADS": "2"}) == sorted(links)
    # A flag, or a variable of the pod's own, which Kubernetes prefers, is read.
    assert read_settings([*BASE, "--port=9"], links).port == 9
    assert read_settings(BASE, links | {"EMB_PORT": "9", "EMB_REST_API_PORT": "10"}).rest_api_port == 10


def test_what_only_looks_like_a_link_stops_the_start() -> None:
    for name, value in (("EMB_PORT", "tcp:8500"), ("EMB_PROT", "tcp://10.0.0.1:1"), ("EMB_ITEMS_PORT", "8500")):
        assert faults_of(BASE, {name: value}), name


def test_all_faults_are_told_at_once() -> None:
    arguments = ["--port=x", "--rest_api_port=70000", "--log_level=loud", "--model_name=a/b", "--saved_model_tags=,"]
    assert faults_of(arguments, {"EMB_COLOR": "red", "EMB_DRAIN_TIMEOUT_S": "soon"}) == [
        "EMB_COLOR is not a setting of this server (see --help)",
        "EMB_DRAIN_TIMEOUT_S is 'soon': expected a number of seconds",
        "--log_level is 'loud': expected one of debug, info, warning, error",
        "--port is 'x': expected a whole number, or 'auto'",
        NO_MODELS,
        "--model_name is 'a/b': it must not be empty or hold a '/'",
        "--saved_model_tags names no tag",
        "--rest_api_port is 70000: expected 0 to 65535",
    ]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--port=8501", "--port and --rest_api_port are both 8501: gRPC and HTTP need one each"),
        ("--port=-1", "--port is -1: expected 0 to 65535"),
        ("--shutdown_delay_s=nan", "--shutdown_delay_s is nan: expected 0 to 3600"),
        ("--drain_timeout_s=inf", "--drain_timeout_s is inf: expected 0 to 3600"),
        ("--neighbors_threads=0", "--neighbors_threads is 0: expected 1 to 1024"),
        ("--neighbors_threads=1.5", "--neighbors_threads is '1.5': expected a whole number"),
        ("--max_request_bytes=64MB", "--max_request_bytes is '64MB': expected a whole number of bytes"),
        ("--max_queue_ms=1s", "--max_queue_ms is '1s': expected a whole number of milliseconds"),
        ("--model_name=", "--model_name is '': it must not be empty or hold a '/'"),
        ("--enable_model_warmup=yes", "--enable_model_warmup is 'yes': expected true or false"),
        ("--rest_api_strict_json=maybe", "--rest_api_strict_json is 'maybe': expected true or false"),
        ("--grpc_channel_arguments=a", "--grpc_channel_arguments is 'a': expected name=value,..."),
        ("--graph_signatures=on", "--graph_signatures is 'on': expected one of auto, whole, lazy, off"),
    ],
)
def test_each_bad_value_is_named_with_what_was_wanted(argument: str, message: str) -> None:
    assert faults_of([*BASE, argument]) == [message]


def test_there_is_a_thread_for_each_processor_unless_a_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    given = ([], ["--threads=3"], ["--threads=auto"])
    assert [read_settings([*BASE, *more], {}).num_threads for more in given] == [8, 3, 8]


@pytest.mark.parametrize("number", ["0", "1025", "-1", "two", "1.5"])
def test_a_number_of_threads_that_makes_no_sense_is_refused(number: str) -> None:
    assert faults_of([*BASE, f"--threads={number}"]) == [f"--threads is {number!r}: expected 1 to 1024, or 'auto'"]


@pytest.mark.parametrize(
    ("argument", "value"), [("", True), ("=true", True), ("=1", True), ("=False", False), ("=0", False)]
)
def test_a_switch_may_stand_alone_or_be_spelled_out(argument: str, value: bool) -> None:
    flag = "--allow_version_labels_for_unavailable_models"
    assert read_settings([*BASE, flag + argument], {}).allow_version_labels_for_unavailable_models is value


def test_warmup_requests_are_run_once_unless_told_otherwise() -> None:
    assert Settings().warmup_iterations == 1
    assert Settings(num_request_iterations_for_warmup=4).warmup_iterations == 4
    assert Settings(enable_model_warmup=False, num_request_iterations_for_warmup=4).warmup_iterations == 0


def test_free_ports_may_be_asked_for_and_ports_may_be_off() -> None:
    settings = read_settings([*BASE, "--port=auto", "--rest_api_port=auto", "--admin_port=auto"], {})
    assert (settings.port, settings.rest_api_port, settings.admin_port) == ("auto", "auto", "auto")
    for off in (["--port=0"], ["--rest_api_port=0"], ["--port=0", "--rest_api_port=0", "--grpc_socket_path=/s"]):
        read_settings([*BASE, *off], {})
    assert faults_of([*BASE, "--port=0", "--rest_api_port=0", "--admin_port=auto"], {}) == [
        "--port and --rest_api_port are both 0 and there is no --grpc_socket_path: nothing can be asked"
    ]
    assert faults_of([*BASE, "--admin_port=-1"], {}) == ["--admin_port is -1: expected 0 to 65535"]


def test_addresses_are_lists_with_or_without_brackets() -> None:
    settings = read_settings([*BASE, "--host=127.0.0.1, [::1],127.0.0.1", "--admin_host=[::1],localhost"], {})
    assert (settings.hosts, settings.admin_hosts) == (("127.0.0.1", "::1"), ("::1", "localhost"))
    assert read_settings([*BASE, "--host=[::],10.0.0.1,::1"], {}).hosts == ("::", "::1")
    assert Settings().hosts == ("::",)
    local = {host: Settings(host=host).local_host for host in ("::", "0.0.0.0", "::1", "10.0.0.1,::1")}
    assert local == {"::": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::1": "::1", "10.0.0.1,::1": "10.0.0.1"}
    for host in ("[::1", "127.0.0.1:8500", "[::1]:8500", "a b", "127.0.0.1,,::1", ""):
        assert any(fault.startswith("--host: ") for fault in faults_of([*BASE, f"--host={host}"], {})), host
    assert faults_of([*BASE, "--admin_port=auto", "--admin_host=127.0.0.1,10.0.0.1"], {}) == [
        "--admin_host is '127.0.0.1,10.0.0.1': where others can reach it, --auth_config is required"
    ]


def test_derived_values_are_in_seconds_and_sets() -> None:
    settings = Settings(
        load_retry_interval_micros=1_500_000, rest_api_timeout_in_ms=250, saved_model_tags=" serve, tpu,"
    )
    assert (settings.load_retry_interval_s, settings.rest_api_timeout_s) == (1.5, 0.25)
    assert settings.tags == {"serve", "tpu"}


def test_callers_and_certificates_are_read_again_whatever_the_scans_for_versions_are() -> None:
    intervals = (Settings(file_system_poll_wait_seconds=seconds).secrets_poll_s for seconds in (0, 0.05, 60))
    assert [*intervals] == [1.0, 0.05, 1.0]


def test_a_negative_wait_before_a_retry_is_none() -> None:
    assert read_settings([*BASE, "--load_retry_interval_micros=-1"], {}).load_retry_interval_s == 0


@pytest.mark.parametrize("number", ["0", "-1"])
def test_0_and_less_have_their_meaning_in_tensorflow_serving(number: str) -> None:
    names = ("rest_api_timeout_in_ms", "num_request_iterations_for_warmup", "model_config_file_poll_wait_seconds")
    settings = read_settings([*BASE, *(f"--{name}={number}" for name in names)], {})
    assert settings.rest_api_timeout_s > 24 * 86400
    assert settings.warmup_iterations == 1
    assert settings.model_config_file_poll_wait_seconds <= 0


@pytest.mark.parametrize(
    "name",
    [
        *("file_system_poll_wait_seconds", "model_config_file_poll_wait_seconds", "rest_api_timeout_in_ms"),
        *("max_num_load_retries", "num_request_iterations_for_warmup", "grpc_max_threads"),
    ],
)
def test_the_largest_number_of_tensorflow_serving_is_taken(name: str) -> None:
    assert getattr(read_settings([*BASE, f"--{name}=2147483647"], {}), name) == 2147483647


@pytest.mark.parametrize(
    ("session", "intra", "inter", "threads"),
    [
        (0, 0, 0, (7, None, None)),
        (3, 0, 0, (3, 3, None)),
        (0, 2, 0, (7, 2, None)),
        (0, 2, 5, (7, 2, 5)),
        (3, 0, 5, (3, 3, 5)),
    ],
)
def test_tensorflows_threads_are_its_own_flags_or_one_for_each_processor(
    session: int, intra: int, inter: int, threads: tuple[int, int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)))
    settings = Settings(
        tensorflow_session_parallelism=session,
        tensorflow_intra_op_parallelism=intra,
        tensorflow_inter_op_parallelism=inter,
    )
    assert settings.parallelism == threads


def test_all_three_of_tensorflows_flags_are_one_too_many() -> None:
    names = ("session_parallelism", "intra_op_parallelism", "inter_op_parallelism")
    fault = (
        "--tensorflow_session_parallelism is for both of --tensorflow_intra_op_parallelism and "
        "--tensorflow_inter_op_parallelism: give it or them"
    )
    assert faults_of([*BASE, *(f"--tensorflow_{name}=1" for name in names)]) == [fault]


def test_a_flag_alone_says_true() -> None:
    assert read_settings([*BASE, "--rest_api_enable_cors_support"], {}).rest_api_enable_cors_support
    assert not read_settings([*BASE, "--rest_api_enable_cors_support=false"], {}).rest_api_enable_cors_support


def test_channel_arguments_are_numbers_where_grpc_takes_numbers() -> None:
    text = "grpc.max_connection_age_ms=2000,grpc.lb_policy_name=a=b,grpc.large=4294967296,grpc.negative=-1,"
    assert Settings(grpc_channel_arguments=text).channel_arguments == [
        ("grpc.max_connection_age_ms", 2000),
        ("grpc.lb_policy_name", "a=b"),
        ("grpc.large", "4294967296"),
        ("grpc.negative", -1),
    ]


@pytest.mark.parametrize(
    ("text", "message_bytes", "idle_s"),
    [
        ("", 64 << 20, None),
        ("grpc.max_receive_message_length=2000,grpc.max_connection_idle_ms=1500", 2000, 1.5),
        # As in gRPC, -1 and the largest int32 mean no limit.
        ("grpc.max_receive_message_length=-1,grpc.max_connection_idle_ms=2147483647", 2**31 - 1, None),
        ("grpc.max_receive_message_length=2147483647,grpc.max_connection_idle_ms=-1", 2**31 - 1, None),
        ("grpc.max_receive_message_length=x", 64 << 20, None),
    ],
)
def test_channel_arguments_that_the_core_has_are_its_limits(
    text: str, message_bytes: int, idle_s: float | None
) -> None:
    settings = Settings(grpc_channel_arguments=text)
    assert (settings.max_message_bytes, settings.channel_seconds("grpc.max_connection_idle_ms")) == (
        message_bytes,
        idle_s,
    )
    assert not settings.idle_channel_arguments


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("argument", "near"),
    [
        ("--prot=1", "; did you mean --port?"),
        ("--por=1", "; did you mean --port?"),
        ("--Model_Name=m", "; did you mean --model_name?"),
        # tensorflow_model_server has this flag, and it sets nothing here.
        ("--mixed_precison=x", "; did you mean --mixed_precision?"),
    ],
)
def test_a_flag_that_does_not_exist_is_refused_and_not_guessed(argument: str, near: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings([*BASE, argument], {})
    assert str(caught.value) == f"{argument} is no flag of this server (see --help){near}"


def test_help_lists_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_settings(["--help=all"], {})
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for setting in dataclasses.fields(Settings):
        assert f"--{setting.name} " in text
        if setting.default != "":
            assert f"Default: {setting.default}." in text


def test_help_begins_with_what_most_people_need(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        read_settings(["--help"], {})
    text = capsys.readouterr().out
    assert set(re.findall(r"^  (?:-h \[all\], )?--(\w+)", text, re.MULTILINE)) == {*COMMON, "help", "version"}
    assert text.index("embedding-server models/ ") < text.index("--model_name")
    assert "--help=all" in text


@pytest.mark.parametrize("name", ["TF_CPP_MIN_LOG_LEVEL", "OPENBLAS_NUM_THREADS", "TF_MKL_ALLOC_MAX_BYTES"])
def test_what_the_user_has_set_for_a_library_is_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "7")
    prepare_libraries(1 << 30)
    assert os.environ[name] == "7"
    monkeypatch.delenv(name)
    prepare_libraries(1 << 30)
    assert os.environ[name] != "7"


@pytest.mark.parametrize(
    ("limit", "given", "expected"),
    [
        (None, 0, 1 << 30),
        (8 << 30, 0, 1 << 30),
        (1 << 30, 0, 1 << 28),
        (1 << 20, 0, 1 << 20),
        (1 << 26, 1 << 40, 1 << 40),
    ],
)
def test_requests_in_flight_may_have_a_quarter_of_a_small_memory(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, given: int, expected: int
) -> None:
    monkeypatch.setattr(settings_module, "memory_limit_bytes", lambda: limit)
    # The largest request always fits.
    found = Settings(max_bytes_in_flight=given, max_request_bytes=1 << 20).bytes_in_flight
    assert found == expected


@pytest.mark.parametrize(("limit", "expected"), [(8 << 30, (8 << 30) - 1000 - (256 << 20)), (1000, 500)])
def test_tensorflow_gets_what_other_memory_leaves(monkeypatch: pytest.MonkeyPatch, limit: int, expected: int) -> None:
    monkeypatch.delenv("TF_MKL_ALLOC_MAX_BYTES", raising=False)
    monkeypatch.setattr(settings_reading, "memory_limit_bytes", lambda: limit)
    monkeypatch.setattr(settings_reading, "swap_bytes", lambda: 0)
    prepare_libraries(1000)
    assert os.environ["TF_MKL_ALLOC_MAX_BYTES"] == str(expected)


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


V1 = "4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n0::/\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/pod/app\n", {}, 8),
        ("0::/pod/app\n", {"pod/app/cpu.max": "max 100000\n"}, 8),
        ("0::/pod/app\n", {"pod/app/cpu.max": "50000 100000\n"}, 1),
        ("0::/pod/app\n", {"pod/app/cpu.max": "250000 100000\n"}, 3),
        ("0::/pod/app\n", {"pod/app/cpu.max": "400000 100000\n", "pod/cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/../other\n", {"cpu.max": "9900000 100000\n"}, 8),
        (V1, {"cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 8),
        (V1, {f"cpu,cpuacct/docker/abc/cpu.cfs_{name}_us": f"{n}\n" for name, n in [("quota", 5), ("period", 10)]}, 1),
        (V1, {f"cpu,cpuacct/cpu.cfs_{name}_us": f"{n}\n" for name, n in [("quota", 40), ("period", 20)]}, 2),
    ],
)
def test_a_quota_limits_the_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name, text in {
        "proc/self/cgroup": own,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert num_processors(tmp_path) == expected


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert num_processors(tmp_path) == len(os.sched_getaffinity(0))
