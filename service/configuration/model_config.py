"""The file that lists the models: read at the start, and again whenever it may have changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from service.artifact.plain_file import read_plain_file
from service.configuration.settings import Settings
from service.engine.base_paths import fault_of
from service.engine.model_config import ModelConfig, is_in_store
from service.errors import DeadlineExceeded, InvalidRequest, ReloadFailed, ServiceError
from service.wire.model_config_proto import parse_config_text

logger = logging.getLogger(__name__)

Models = tuple[ModelConfig, ...]
_EMPTY = "{} is empty; to serve no models it must say model_config_list {{}}"


def single_model(settings: Settings) -> Models:
    """Returns the list of one model that --model_name and --model_base_path mean."""
    path = settings.model_base_path
    return (ModelConfig(settings.model_name, path if is_in_store(path) else str(Path(path).absolute())),)


def base_path_faults(settings: Settings) -> list[str]:
    """Returns, for each model that the server would start with, why its base path has no version to load.

    A --model_config_file that can not be read has no models here: the start itself says what is wrong with it.
    """
    try:
        file = settings.model_config_file
        models = ConfigFile(Path(file), 0.0).read() if file else single_model(settings)
    except ServiceError:
        return []
    faults = {model.name: fault_of(model) for model in models}
    return [f"model {name}: {fault}" for name, fault in faults.items() if fault]


class ConfigFile:
    """One --model_config_file.

    A text that was taken is not taken again, so that a reload by request stays in force until the file changes. One
    that was refused is tried again, for what it waits for may have come: at each look where asking costs nothing, and
    retry_interval_s later where a model had to be loaded to find out.

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
        self._taken: bytes | None = None
        self._failed: bytes | None = None
        self._retry_at_s = 0.0
        self._complaint = ""
        self._turn = threading.Lock()

    def read(self) -> Models:
        """Reads the file at the start; an empty one lists no models. Raises InvalidRequest."""
        data = self._read_bytes()
        models = self._parse(data) or ()
        self._taken = data
        return models

    def poll_once(self, reload: Callable[[Sequence[ModelConfig]], None]) -> None:
        """Gives a text that is new to reload; what is wrong with it is logged, once."""
        with self._turn:
            self._poll(reload)

    def _poll(self, reload: Callable[[Sequence[ModelConfig]], None]) -> None:
        try:
            data = self._read_bytes()
            if data == self._taken:
                self._complaint = ""
                return
            if data == self._failed and self._clock() < self._retry_at_s:
                return
            models = self._parse(data)
            if models is None:
                raise InvalidRequest(_EMPTY.format(self._path))
            try:
                reload(models)
            except (ReloadFailed, DeadlineExceeded):
                self._failed, self._retry_at_s = data, self._clock() + self._retry_interval_s
                raise
        except ServiceError as error:
            if error.message != self._complaint:
                self._complaint = error.message
                logger.error("model config refused", extra={"path": str(self._path), "reason": error.message})
            return
        self._taken, self._complaint = data, ""
        logger.info("model config taken", extra={"path": str(self._path)})

    def reload_now(self, reload: Callable[[Sequence[ModelConfig]], None]) -> Models:
        """Gives reload what the file says, whether it is new or not, and returns it.

        Concurrency: any thread.

        Raises:
          ServiceError: the file, or what it says, can not be used; all stays as it is.
        """
        with self._turn:
            data = self._read_bytes()
            models = self._parse(data)
            if models is None:
                raise InvalidRequest(_EMPTY.format(self._path))
            reload(models)
            self._taken, self._complaint = data, ""
            return models

    def run(
        self, reload: Callable[[Sequence[ModelConfig]], None], stop: threading.Event, poll_interval_s: float
    ) -> None:
        """Polls until stop is set."""
        while not stop.wait(poll_interval_s):
            try:
                self.poll_once(reload)
            except Exception:
                # A file that is not looked at any more would be noticed by nobody.
                logger.exception("polling failed", extra={"path": str(self._path)})

    def _read_bytes(self) -> bytes:
        try:
            return read_plain_file(self._path)
        except OSError as error:
            raise InvalidRequest(f"cannot read {self._path}: {error.strerror}") from error

    def _parse(self, data: bytes) -> Models | None:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"Invalid protobuf file: '{self._path}': it is not UTF-8 text") from error
        return parse_config_text(text, str(self._path))
