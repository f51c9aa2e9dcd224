"""Reads each setting from its flag, else from the variable EMB_<NAME>, else takes its default.

No other file of the server reads environment variables.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from service.configuration.model_server_flags import FOREIGN_FLAGS
from service.configuration.setting_fields import Port
from service.configuration.settings import COMMON, ENV_PREFIX, SECTIONS, Settings
from service.configuration.settings_faults import faults_of
from service.near_names import did_you_mean

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
    settings, faults = _read(arguments, os.environ if environ is None else environ)
    faults += faults_of(settings)
    foreign, unread = _foreign_values(_flags(arguments)[0])
    faults += unread
    faults += [f"--{name} is not supported: {why}" for name, why in foreign.items() if FOREIGN_FLAGS[name].is_refused]
    if faults:
        raise SettingsError("\n".join(faults))
    return settings


def read_unchecked(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """Builds the settings without refusing wrong values: the health check needs only the port and TLS."""
    return _read(arguments, os.environ if environ is None else environ)[0]


def _read(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Returns the settings, and an error text for each flag and variable that can not be parsed."""
    flags, rest = _flags(arguments)
    unknown, folders = [one for one in rest if one.startswith("-")], [one for one in rest if not one.startswith("-")]
    if folders:
        flags["models"] = ",".join(filter(None, (flags["models"], *folders)))
    types = _kinds()
    links = service_links(environ)
    environ = {name: value for name, value in environ.items() if name not in links}
    names = {f.name for f in dataclasses.fields(Settings)}
    faults = [
        f"{argument} is no flag of this server (see --help){did_you_mean(argument.partition('=')[0], _flag_names())}"
        for argument in unknown
    ]
    faults += [
        f"{name} is not a setting of this server (see --help)"
        + did_you_mean(name, (ENV_PREFIX + known.upper() for known in names))
        for name in sorted(environ)
        if name.startswith(ENV_PREFIX) and name.removeprefix(ENV_PREFIX).lower() not in names
    ]
    values: dict[str, Any] = {}
    for name in sorted(names):
        text = flags[name] if flags[name] is not None else environ.get(ENV_PREFIX + name.upper())
        if text is not None:
            try:
                values[name] = _parse(types[name], text)
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
    """Returns flag -> what this server does instead, for given flags of tensorflow_model_server without effect here."""
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
            if text is not None and not flag.asks_for_nothing(_parse(flag.kind, text)):
                asking[name] = flag.why
        except ValueError as error:
            faults.append(f"--{name} is {text!r}: {error}")
    return asking, faults


def otlp_protocol(environ: Mapping[str, str] | None = None) -> str:
    """Returns the OTLP protocol for traces, from OpenTelemetry's own environment variables."""
    environ = os.environ if environ is None else environ
    named = (environ.get(name) for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"))
    return next(filter(None, named), "http/protobuf")


def prepare_libraries() -> None:
    """Sets environment variables that TensorFlow and numpy read at their import, unless the user has set them."""
    # Level 3 keeps all of TensorFlow's own log messages, except fatal ones, out of the server's log.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # One thread is enough for OpenBLAS in numpy, as lookups multiply no matrices; by default it starts a thread for
    # each processor, and each spins for 50 ms.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _flags(arguments: Sequence[str]) -> tuple[dict[str, str | None], list[str]]:
    """Returns the text of every flag (None: it was not given), and the other arguments: folders, and unknown flags."""
    known, unknown = _parser().parse_known_args(arguments)
    return vars(known), unknown


@cache
def _kinds() -> Mapping[str, Any]:
    """Returns name of a setting -> its type; the dict is cached, because evaluating annotations takes 1 ms."""
    return get_type_hints(Settings)


def _flag_names() -> list[str]:
    return [f"--{name}" for name in (*(f.name for f in dataclasses.fields(Settings)), *FOREIGN_FLAGS)]


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
    """Prints the most used flags, or all flags for --help=all, and exits."""

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


def _parse(kind: Any, text: str) -> Any:
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
        raise ValueError(f"expected {wanted}") from None
