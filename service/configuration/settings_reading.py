"""Reads each setting from its flag, else from the variable EMB_<NAME>, else its default; finds faults in them.

No other file of the server reads environment variables.

A command line of tensorflow_model_server works unchanged. Each of its flags that this server lacks either has no
effect, which a warning says, or is refused, because the server would do something else than the flag asks for.

Source: tensorflow_serving/model_servers/main.cc, server.h (9d981c5).
"""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from service.configuration.control_groups import memory_limit_bytes, swap_bytes
from service.configuration.server_settings import Port
from service.configuration.settings import COMMON, ENV_PREFIX, SECTIONS, Settings
from service.errors import did_you_mean
from service.remote.address import remote_tables, without_password
from service.versions.model_config import is_in_store


@dataclass(frozen=True, slots=True)
class ForeignFlag:
    """A flag of tensorflow_model_server that this server does not have.

    kind: type of the flag's value: bool, int, float or str.
    why: what this server does instead.
    is_refused: the flag stops the start; else it has no effect.
    idle: the value that asks for what the server does anyway, without a warning; None: 0, false or "".
    """

    kind: type
    why: str
    is_refused: bool = False
    idle: Any = None

    def asks_for_nothing(self, value: Any) -> bool:
        return bool(value == (self.kind() if self.idle is None else self.idle))


_NO_TFLITE = "only SavedModels are served"
_NO_XLA = "a graph runs as TensorFlow compiles it by default"

# Name of a flag of tensorflow_model_server -> how this server treats it. Flags that are settings of this server are not
# here.
FOREIGN_FLAGS: Mapping[str, ForeignFlag] = {
    "enable_grpc_healthcheck_service": ForeignFlag(bool, "the health service is always there", idle=True),
    "enable_profiler": ForeignFlag(bool, "there is no profiler service"),
    "enable_signature_method_name_check": ForeignFlag(bool, "a signature's method name is not checked"),
    "flush_filesystem_caches": ForeignFlag(
        bool, "tables are read through the file system's cache while they are served"
    ),
    "mixed_precision": ForeignFlag(str, "a graph runs in the precision it was exported in"),
    "num_tflite_interpreters_per_pool": ForeignFlag(int, _NO_TFLITE),
    "num_tflite_pools": ForeignFlag(int, _NO_TFLITE),
    "num_unload_threads": ForeignFlag(int, "an unload that waits for its requests delays no other model"),
    "per_process_gpu_memory_fraction": ForeignFlag(float, "graphs run on the CPU"),
    "platform_config_file": ForeignFlag(str, "the only platform is tensorflow", is_refused=True),
    "prefer_tflite_model": ForeignFlag(bool, _NO_TFLITE),
    "remove_unused_fields_from_bundle_metagraph": ForeignFlag(bool, "a MetaGraph is not kept in memory"),
    "rest_api_num_threads": ForeignFlag(int, "--threads sets the threads for HTTP and gRPC"),
    "skip_initialize_tpu": ForeignFlag(bool, "no TPU is used", idle=True),
    "tensorflow_session_config_file": ForeignFlag(
        str, "the session's threads are set by --tensorflow_intra_op_parallelism and --tensorflow_inter_op_parallelism"
    ),
    "thread_pool_factory_config_file": ForeignFlag(str, "TensorFlow's own thread pools are used"),
    "use_alts_credentials": ForeignFlag(bool, "--ssl_config_file sets TLS for gRPC", is_refused=True),
    "xla_cpu_compilation_enabled": ForeignFlag(bool, _NO_XLA),
    "xla_gpu_compilation_enabled": ForeignFlag(bool, _NO_XLA),
}

_MAX_THREADS = 1024
_ORIGIN = r"https?://[a-z0-9.-]+(:[0-9]+)?|https?://\[[0-9a-f:]+\](:[0-9]+)?"


def faults_of(settings: Settings) -> list[str]:
    found = []
    sources = ("models", "model_base_path", "model_config_file")
    given = [f"--{name}" for name in sources if getattr(settings, name).strip(" ,")]
    if not given:
        found.append(
            "name a folder of models, or of the versions of one model, for example: embedding-server models/movielens"
        )
    if settings.models and len(given) > 1:
        found.append(f"models are named in two ways, by the folder {settings.models} and by {given[-1]}: give one")
    paths = [] if settings.model_config_file else [settings.model_base_path, *settings.model_folders]
    if not settings.store_cache_dir:
        found += [
            f"{path} is in an object store, so --store_cache_dir must name a folder for its versions"
            for path in paths
            if is_in_store(path)
        ]
    if not settings.model_name or "/" in settings.model_name:
        found.append(f"--model_name is {settings.model_name!r}: it must not be empty or hold a '/'")
    if settings.port == settings.rest_api_port not in (0, "auto"):
        found.append(f"--port and --rest_api_port are both {settings.port}: gRPC and HTTP need one each")
    if settings.port == settings.rest_api_port == 0 and not settings.grpc_socket_path:
        found.append("--port and --rest_api_port are both 0 and there is no --grpc_socket_path: nothing can be asked")
    if settings.admin_port not in (0, "auto") and settings.admin_port in (settings.port, settings.rest_api_port):
        found.append(f"--admin_port is {settings.admin_port}: it must differ from --port and --rest_api_port")
    for name, hosts in (("host", settings.hosts), ("admin_host", settings.admin_hosts)):
        found += [
            f"--{name}: {host!r}: expected an address, such as 127.0.0.1 or ::" for host in hosts if not _is_host(host)
        ]
    if settings.admin_port != 0 and not settings.auth_config and not all(map(_is_loopback, settings.admin_hosts)):
        found.append(f"--admin_host is {settings.admin_host!r}: where others can reach it, --auth_config is required")
    if settings.rest_api_enable_cors_support and settings.cors_origins:
        found.append("--rest_api_enable_cors_support is for all origins, --rest_api_cors_origins for some: give one")
    for origin in settings.cors_origins:
        if not re.fullmatch(_ORIGIN, origin):
            found.append(f"--rest_api_cors_origins: {origin!r}: expected https://host or https://host:port")
    if not 1 <= settings.num_threads <= _MAX_THREADS:
        found.append(f"--threads is {settings.threads!r}: expected 1 to {_MAX_THREADS}, or 'auto'")
    try:
        remote_tables(settings.remote_tables)
    except ValueError as error:
        found.append(f"--remote_tables: {error}")
    if settings.paged_tables == "on" and (settings.warm == "tables" or settings.table_lock != "off"):
        found.append("--paged_tables=on drops pages of tables, --warm=tables and --table_lock keep all: give one")
    if not settings.tags:
        found.append("--saved_model_tags names no tag")
    own = (settings.tensorflow_intra_op_parallelism, settings.tensorflow_inter_op_parallelism)
    if settings.tensorflow_session_parallelism and all(own):
        found.append(
            "--tensorflow_session_parallelism is for both of --tensorflow_intra_op_parallelism and "
            "--tensorflow_inter_op_parallelism: give it or them"
        )
    if not all(pair.partition("=")[0] and "=" in pair for pair in settings.grpc_channel_arguments.split(",") if pair):
        found.append(f"--grpc_channel_arguments is {settings.grpc_channel_arguments!r}: expected name=value,...")
    if settings.bytes_in_flight < settings.max_request_bytes:
        found.append(
            f"--max_bytes_in_flight is {settings.max_bytes_in_flight}: expected at least --max_request_bytes, "
            f"{settings.max_request_bytes}"
        )
    for setting in dataclasses.fields(settings):
        value, low, high = getattr(settings, setting.name), setting.metadata["low"], setting.metadata["high"]
        if low is not None and value != "auto" and not low <= value <= high:
            found.append(f"--{setting.name} is {value}: expected {low} to {high}")
    return found


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", text) is not None
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# Patterns of the variables that Kubernetes puts into every pod for each Service of its namespace, and of their values.
# Those of a Service named emb or emb-... begin with EMB_, and a Service emb-admin even sets EMB_ADMIN_PORT.
# Source: kubernetes/pkg/kubelet/envvars/envvars.go (1.32).
_LINK_URL = r"(?:tcp|udp|sctp)://\S+:[0-9]+"
_SERVICE_LINKS = {
    r"EMB(?:_\w+)?_SERVICE_HOST": r"[0-9a-fA-F.:]+",
    r"EMB(?:_\w+)?_SERVICE_PORT(?:_\w+)?": r"[0-9]+",
    r"EMB(?:_\w+)?_PORT": _LINK_URL,
    r"EMB(?:_\w+)?_PORT_[0-9]+_(?:TCP|UDP|SCTP)": _LINK_URL,
    r"EMB(?:_\w+)?_PORT_[0-9]+_(?:TCP|UDP|SCTP)_(?:PROTO|PORT|ADDR)": r"\S+",
}
_FIRST_LINES = """\
  embedding-server models/                     all models in a folder: models/films/1, models/users/7, ...
  embedding-server models/films                one model, a folder of versions; also several such folders
  embedding-server s3://bucket/films --store_cache_dir=/var/cache/films
  embedding-server --model_config_file=models.conf    with versions, labels and settings for each model"""
_LAST_LINES = """\
Each flag can also be set as EMB_<NAME>, for example EMB_REST_API_PORT=8501; flags win. Flags of
tensorflow_model_server work as there. `embedding-server --help=all` lists all settings."""
_BOOLEANS: Mapping[str, bool] = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class SettingsError(Exception):
    """The error that the settings can not be used; the message lists every wrong flag and environment variable."""


def read_settings(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """Builds the settings from a command line and environment variables; by default, the variables of this process.

    Raises:
      SettingsError: an unknown flag or EMB_ variable, a value that does not parse, or a fault that faults_of() finds.
      SystemExit: --help, or a flag without its value.
    """
    environ = os.environ if environ is None else environ
    settings, faults = _read(arguments, environ)
    faults += faults_of(settings)
    foreign, unread = _foreign_values(_flags(arguments)[0])
    faults += unread
    faults += [f"--{name} is not supported: {why}" for name, why in foreign.items() if FOREIGN_FLAGS[name].is_refused]
    if faults:
        raise SettingsError("\n".join(_as_given(fault, arguments, environ) for fault in faults))
    return settings


def _as_given(fault: str, arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """Names each setting in a fault by its variable, if the setting has its value from there."""
    flags, links = _flags(arguments)[0], service_links(environ)

    def given(flag: re.Match[str]) -> str:
        variable = ENV_PREFIX + flag[1].upper()
        is_variable = flags.get(flag[1]) is None and variable in environ and variable not in links
        return variable if is_variable else flag[0]

    return re.sub(r"--(\w+)", given, fault)


def read_unchecked(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """Builds the settings without refusing wrong values: the health check needs only the port and TLS."""
    return _read(arguments, os.environ if environ is None else environ)[0]


def _meant(flag: str, known: Sequence[str]) -> str:
    """Returns the end of an error text: the flag of a similar name, or the few flags with the same last word."""
    same = [one for one in known if re.split("[-_]", one)[-1] == re.split("[-_]", flag)[-1]]
    few = f"; did you mean {' or '.join(same)}?" if 0 < len(same) <= 3 else ""
    return did_you_mean(flag, known) or few


def _read(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    flags, rest = _flags(arguments)
    unknown, folders = [one for one in rest if one.startswith("-")], [one for one in rest if not one.startswith("-")]
    if folders:
        flags["models"] = ",".join(filter(None, (flags["models"], *folders)))
    types = _kinds()
    links = service_links(environ)
    environ = {name: value for name, value in environ.items() if name not in links}
    names = [f.name for f in dataclasses.fields(Settings)]
    variables = {ENV_PREFIX + name.upper() for name in names}
    known = [f"--{name}" for name in (*names, *FOREIGN_FLAGS)]
    faults = [
        f"{argument} is no flag of this server (see --help){_meant(argument.partition('=')[0], known)}"
        for argument in unknown
    ]
    faults += [
        f"{name} is not a setting of this server (see --help)" + did_you_mean(name, variables)
        for name in sorted(environ)
        if name.startswith(ENV_PREFIX) and name not in variables
    ]
    values: dict[str, Any] = {}
    for name in sorted(names):
        text = flags[name] if flags[name] is not None else environ.get(ENV_PREFIX + name.upper())
        if text is not None:
            try:
                values[name] = _parse(types[name], text, _unit(name))
            except ValueError as error:
                faults.append(f"--{name} is {text!r}: {error}")
    return Settings(**values), faults


def service_links(environ: Mapping[str, str] | None = None) -> list[str]:
    """Returns the names of variables that begin as settings do, and that Kubernetes has set for a Service; sorted.

    >>> service_links({"EMB_PORT": "tcp://10.0.0.1:8500", "EMB_REST_API_PORT": "8501", "EMB_ITEMS_SERVICE_PORT": "80"})
    ['EMB_ITEMS_SERVICE_PORT', 'EMB_PORT']
    """
    environ = os.environ if environ is None else environ
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX)
        and any(re.fullmatch(link, name) and re.fullmatch(text, value) for link, text in _SERVICE_LINKS.items())
    )


def flags_without_effect(arguments: Sequence[str]) -> dict[str, str]:
    foreign, _ = _foreign_values(_flags(arguments)[0])
    return {name: why for name, why in foreign.items() if not FOREIGN_FLAGS[name].is_refused}


def _foreign_values(flags: Mapping[str, str | None]) -> tuple[dict[str, str], list[str]]:
    """Returns flag -> why this server lacks it, for given flags of tensorflow_model_server; and texts for wrong values.

    A flag whose value asks only for things that this server always does is left out.
    """
    asking: dict[str, str] = {}
    faults: list[str] = []
    for name, flag in FOREIGN_FLAGS.items():
        text = flags[name]
        try:
            if text is not None and not flag.asks_for_nothing(_parse(flag.kind, text, _unit(name))):
                asking[name] = flag.why
        except ValueError as error:
            faults.append(f"--{name} is {text!r}: {error}")
    return asking, faults


def otlp_protocol(environ: Mapping[str, str] | None = None) -> str:
    environ = os.environ if environ is None else environ
    named = (environ.get(name) for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"))
    return next(filter(None, named), "http/protobuf")


# What the process takes in memory beside tables, TensorFlow's tensors, requests and answers.
_OWN_BYTES = 256 << 20


def prepare_libraries(bytes_in_flight: int) -> None:
    """Sets environment variables that TensorFlow and numpy read at their import, unless the user has set them."""
    # TensorFlow keeps all memory that it once had. Without a limit, no memory may be left for requests and answers.
    if limit := memory_limit_bytes():
        others = min(bytes_in_flight + _OWN_BYTES, limit // 2)
        os.environ.setdefault("TF_MKL_ALLOC_MAX_BYTES", str(limit + swap_bytes() - others))
    # Level 3 keeps all of TensorFlow's own log messages, except fatal ones, out of the server's log.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Each session then has its own threads for work within an operation, as many as its config says. By default, all
    # have those of the first one.
    os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
    # One thread is enough for OpenBLAS in numpy, as lookups multiply no matrices; by default it starts a thread for
    # each processor, and each spins for 50 ms.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _flags(arguments: Sequence[str]) -> tuple[dict[str, str | None], list[str]]:
    known, unknown = _parser().parse_known_args(arguments)
    return vars(known), unknown


@cache
def _kinds() -> Mapping[str, Any]:
    """Returns name of a setting -> its type; the dict is cached, because evaluating annotations takes 1 ms."""
    return get_type_hints(Settings)


@cache
def _parser(is_whole: bool = True) -> argparse.ArgumentParser:
    """Returns the parser of the command line, or with is_whole=False one that has only the most used flags, for --help.

    It is cached, because the command line is parsed three times at a start.
    """
    parser = argparse.ArgumentParser(
        prog="embedding-server",
        usage="%(prog)s MODELS ... [--FLAG=VALUE ...]",
        description="Serves embedding lookups and predictions of SavedModels over HTTP and gRPC.\n\n" + _FIRST_LINES,
        epilog=_LAST_LINES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    types = _kinds()
    group: argparse._ActionsContainer = parser
    for setting in dataclasses.fields(Settings):
        if is_whole and setting.name in SECTIONS:
            group = parser.add_argument_group(SECTIONS[setting.name])
        if not is_whole and setting.name not in COMMON:
            continue
        kind = types[setting.name]
        metavar = "PORT" if kind == Port else getattr(kind, "__name__", "").upper()
        if get_origin(kind) is Literal:
            metavar = "{" + ",".join(get_args(kind)) + "}"
        default = "" if setting.default == "" else f" Default: {setting.default}."
        about = setting.metadata["about"].replace("%", "%%")
        group.add_argument(f"--{setting.name}", metavar=metavar, help=about + default, **_alone(kind))
    about = "show this help and exit; --help=all lists all settings, by topic"
    parser.add_argument("-h", "--help", action=_ShowHelp, nargs="?", metavar="all", help=about)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show program's version number and exit")
    if is_whole:
        group = parser.add_argument_group("flags of tensorflow_model_server that have no effect here, or are refused")
        for name, flag in FOREIGN_FLAGS.items():
            about = ("Refused: " if flag.is_refused else "No effect: ") + flag.why + "."
            group.add_argument(f"--{name}", metavar=flag.kind.__name__.upper(), help=about, **_alone(flag.kind))
    return parser


class _ShowHelp(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, _: object, value: object, option: str | None = None
    ) -> NoReturn:
        sys.stdout.write(_parser(value is not None).format_help())
        parser.exit()


class _ShowVersion(argparse.Action):
    """Prints the server's version and exits. argparse's own action would look the version up at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        sys.stdout.write(f"{parser.prog} {installed_version()}\n")
        parser.exit()


def installed_version() -> str:
    # importlib.metadata is imported only here: it imports email, which takes 13 ms of the server's start.
    import importlib.metadata

    try:
        return importlib.metadata.version("embedding-server")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed, run from its sources)"


def _alone(kind: Any) -> dict[str, Any]:
    # A boolean flag that is given without a value is true, as in tensorflow_model_server.
    return {"nargs": "?", "const": "true"} if kind is bool else {}


# The last word of a setting's name -> its unit.
_UNITS = {
    "bytes": " of bytes",
    "mib": " of MiB",
    "micros": " of microseconds",
    "ms": " of milliseconds",
    "s": " of seconds",
    "seconds": " of seconds",
}


def _unit(name: str) -> str:
    return _UNITS.get(name.rpartition("_")[2], "")


def _parse(kind: Any, text: str, unit: str) -> Any:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"expected one of {', '.join(get_args(kind))}")
        return text
    if kind == Port and text == "auto":
        return text
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError("expected true or false")
        return _BOOLEANS[text.lower()]
    try:
        return (int if kind == Port else kind)(text)
    except ValueError:
        wanted = {int: "a whole number", Port: "a whole number, or 'auto'"}.get(kind, "a number")
        raise ValueError(f"expected {wanted}{unit}") from None


_SECRET = re.compile(r"token|secret|passw|credential|private|api_?key", re.IGNORECASE)
_HIDDEN = "(hidden)"


def shown_settings(settings: Settings) -> dict[str, dict[str, Any]]:
    shown = {}
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        is_secret = bool(value) and _SECRET.search(one.name) is not None and isinstance(value, str)
        if isinstance(value, str):
            value = without_password(value)
        shown[one.name] = {"value": _HIDDEN if is_secret else value, "is_default": value == one.default}
    return shown
