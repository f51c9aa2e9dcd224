"""Reads the files that settings name: of models, again when it changes or a reload failed, and of monitoring."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from service.artifact.files import read_plain_file
from service.configuration.settings import Settings
from service.errors import DeadlineExceeded, InvalidRequest, ReloadFailed, ServiceError, os_errors_as
from service.versions.model_config import (
    SAVED_MODELS,
    ModelConfig,
    fault_of,
    find_versions,
    holds_versions,
    is_in_store,
    unreadable,
    unserved,
)
from service.wire.config_protos import PrometheusConfig, parse_config_text, parse_monitoring_text


def read_proto_text(path: Path) -> str:
    try:
        with os_errors_as(InvalidRequest, f"cannot read {path}"):
            return read_plain_file(path).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"Invalid protobuf file: '{path}': it is not UTF-8 text") from error


# HTTP paths of the metrics: this server's own, and TensorFlow Serving's default.
OWN_PATH = "/metrics"
DEFAULT_PATH = "/monitoring/prometheus/metrics"


def read_monitoring_config(path: Path) -> PrometheusConfig:
    return parse_monitoring_text(read_proto_text(path), str(path))


def metrics_paths(config: PrometheusConfig | None) -> tuple[str, ...]:
    """Returns the HTTP paths of the metrics, OWN_PATH first; none if the config does not enable metrics.

    config: None without a file. Raises InvalidRequest for a path that is no URL path, or another route's.
    """
    if config is None:
        return (OWN_PATH, DEFAULT_PATH)
    if not config.enable:
        return ()
    path = config.path or DEFAULT_PATH
    if not path.startswith("/") or set(path) & set("{}?#% "):
        raise InvalidRequest(f"prometheus_config.path is {path!r}: it must start with '/' and hold none of {{}}?#%")
    if path in ("/healthz", "/readyz", "/docs", "/openapi.json") or path.startswith("/v1/models/"):
        raise InvalidRequest(f"prometheus_config.path is {path!r}, which is another route of this server")
    return (OWN_PATH,) if path == OWN_PATH else (OWN_PATH, path)


logger = logging.getLogger(__name__)

Models = tuple[ModelConfig, ...]
_EMPTY = "{} is empty; to serve no models it must say model_config_list {{}}"


def models_of(settings: Settings) -> Models:
    if settings.model_config_file:
        return ConfigFile(Path(settings.model_config_file), 0.0).read()
    if not settings.models:
        path = settings.model_base_path
        return (ModelConfig(settings.model_name, path if is_in_store(path) else str(Path(path).absolute())),)
    paths = [path for folder in settings.model_folders for path in _base_paths(folder)]
    named: dict[str, str] = {}
    for path in paths:
        name = path.rstrip("/").rpartition("/")[2]
        if named.setdefault(name, path) != path:
            raise InvalidRequest(f"{named[name]} and {path} would both be the model {name}: rename one of the folders")
    if settings.model_name != "default":
        if len(named) > 1:
            raise InvalidRequest(f"--model_name is {settings.model_name!r}, but there are {len(named)} models")
        return (ModelConfig(settings.model_name, paths[0]),)
    return tuple(ModelConfig(name, path) for name, path in named.items())


def _base_paths(folder: str) -> list[str]:
    if is_in_store(folder):
        return [folder]
    path = Path(folder).absolute()
    try:
        if found := find_versions(path):
            return [str(path)]
        inside = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    except OSError as error:
        raise InvalidRequest(unreadable(str(path), error)) from error
    if not inside and not any((path / name).exists() for name in SAVED_MODELS):
        raise InvalidRequest(f"no model in {path}: a version is a folder such as {path}/MODEL/1, with a saved_model.pb")
    models = [str(each) for each in inside if holds_versions(each)]
    if not models:
        raise InvalidRequest(unserved(str(path), found))
    return models


def base_path_faults(settings: Settings) -> list[str]:
    """Returns one text for each configured model whose base path has no version to load, with the reason.

    The list is empty if the list of models can not be read; the start itself reports this fault.
    """
    try:
        models = models_of(settings)
    except ServiceError:
        return []
    faults = {model.name: fault_of(model) for model in models}
    return [f"model {name}: {fault}" for name, fault in faults.items() if fault]


class ConfigFile:
    """The watcher of --model_config_file, which reloads the list of models when the file changes.

    A text that was applied is not applied again, so that a reload by a request stays in force until the file changes. A
    text that was refused is tried again, because its models' folders may be there later: at each poll if the check is
    cheap, and retry_interval_s later if models had to be loaded for it.

    Concurrency: one caller at a time, but for reload_now.
    """

    def __init__(
        self,
        path: Path,
        retry_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._retry_interval_s = retry_interval_s
        self._clock = clock
        self._applied: str | None = None
        self._failed: str | None = None
        self._retry_at_s = 0.0
        self._complaint = ""
        self._turn = threading.Lock()

    def read(self) -> Models:
        text = read_proto_text(self._path)
        models = self._parse(text) or ()
        self._applied = text
        return models

    def poll_once(self, reload: Callable[[Sequence[ModelConfig]], None]) -> None:
        """Reads --model_config_file, and calls reload() with its models unless the text is applied already.

        An error is logged once.
        """
        with self._turn:
            self._poll(reload)

    def _poll(self, reload: Callable[[Sequence[ModelConfig]], None]) -> None:
        try:
            text = read_proto_text(self._path)
            if text == self._applied:
                self._complaint = ""
                return
            if text == self._failed and self._clock() < self._retry_at_s:
                return
            models = self._parse(text)
            if models is None:
                raise InvalidRequest(_EMPTY.format(self._path))
            try:
                reload(models)
            except (ReloadFailed, DeadlineExceeded):
                self._failed, self._retry_at_s = text, self._clock() + self._retry_interval_s
                raise
        except ServiceError as error:
            if error.message != self._complaint:
                self._complaint = error.message
                logger.error("model config refused", extra={"path": str(self._path), "reason": error.message})
            return
        self._applied, self._complaint = text, ""
        logger.info("model config applied", extra={"path": str(self._path)})

    def reload_now(self, reload: Callable[[Sequence[ModelConfig]], None]) -> Models:
        """Reloads the models in --model_config_file, even if the file has not changed; returns these models.

        Concurrency: any thread.
        """
        with self._turn:
            text = read_proto_text(self._path)
            models = self._parse(text)
            if models is None:
                raise InvalidRequest(_EMPTY.format(self._path))
            reload(models)
            self._applied, self._complaint = text, ""
            return models

    def _parse(self, text: str) -> Models | None:
        return parse_config_text(text, str(self._path))
