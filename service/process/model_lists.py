"""Gets the list of models from flags, from the --model_config_file, or from requests of operators."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from service.configuration.config_files import ConfigFile, models_of
from service.configuration.settings import Settings, StartError
from service.control.engine import Engine
from service.errors import ConfigConflict, LabelNotFound, ModelNotFound, ServiceError
from service.loading.remote_tables import unserved_models
from service.remote.address import remote_tables
from service.versions.model_config import ClientFolders, ModelConfig, Origin, Specific, VersionPolicy, with_origin
from service.versions.model_set import ModelSet
from service.versions.threads import repeat
from service.wire.config_protos import parse_config_text


class ModelLists:
    """The list of models: its sources (flags, the --model_config_file, requests), and its reloads. Concurrency: any
    thread.
    """

    def __init__(self, settings: Settings, models: ModelSet) -> None:
        self._settings = settings
        self._models = models
        self._client_folders = ClientFolders(settings.model_root, settings.request_log_root)
        # Model -> its policy before it was pinned to a version, and the policy that pins it.
        self._pinned: dict[str, tuple[VersionPolicy, Specific]] = {}
        self._file: ConfigFile | None = None
        if settings.model_config_file:
            self._file = ConfigFile(Path(settings.model_config_file), settings.load_retry_interval_s)

    def first(self) -> tuple[ModelConfig, ...]:
        configs = self._first()
        if fault := unserved_models(remote_tables(self._settings.remote_tables), [config.name for config in configs]):
            raise StartError(fault)
        return configs

    def _first(self) -> tuple[ModelConfig, ...]:
        settings = self._settings
        try:
            if self._file is None:
                return models_of(settings)
            configs = self._file.read()
            self._models.check(configs)
        except ServiceError as error:
            if self._file is None:
                raise StartError(error.message) from error
            hint = ""
            if isinstance(error, ConfigConflict):
                hint = ". Labels can be set at the start with --allow_version_labels_for_unavailable_models=true"
            raise StartError(f"--model_config_file={settings.model_config_file}: {error.message}{hint}") from error
        return configs

    def reload(self, models: Sequence[ModelConfig], deadline_s: float | None = None, origin: Origin = "client") -> None:
        """Replaces the list of models; blocks.

        Raises:
          PermissionDenied: a client's list names a folder that clients may not choose.
          Other errors as ModelSet.reload does.
        """
        served = {config.name: config for config in self._models.configs}
        if origin == "client":
            self._client_folders.check(models, served)
        self._models.reload(with_origin(models, served, origin), deadline_s)

    def set_label(self, model: str, label: str, version: int | None) -> None:
        """Points a label of a model to a version, or removes it; blocks. Raises as Engine.set_label.

        The change lasts until the next list of models, such as the --model_config_file's when that is read again.
        """
        before, one = self._find(model)
        if version is None and label not in one.labels:
            raise LabelNotFound(f"Unrecognized servable version label: {label}")
        labels = {name: old for name, old in one.labels.items() if name != label}
        self._change(before, one, replace(one, labels=labels if version is None else labels | {label: version}))

    def pin(self, model: str, version: int | None) -> None:
        """Makes a model serve one version only; None serves the listed versions again. Blocks. Raises as Engine.pin.

        The change lasts until the next list of models, as the change of a label does.
        """
        before, one = self._find(model)
        if version is not None:
            # folder() raises an error if the version has no folder: a pin to such a version would unload all versions
            # of the model.
            self._models.folder(model, version)
            pinned = Specific(frozenset({version}))
            policy = self._policies_of(one)[0]
            self._change(before, one, replace(one, policy=pinned))
            self._pinned[model] = policy, pinned
            return
        policy, now = self._policies_of(one)
        if policy is now:
            raise ConfigConflict(f'Model "{model}" is not pinned to a version.')
        self._change(before, one, replace(one, policy=policy))
        self._pinned.pop(model, None)

    def pinned(self, model: str) -> int | None:
        _, pin = self._pinned.get(model, (None, None))
        is_pinned = pin is not None and any(one.name == model and one.policy is pin for one in self._models.configs)
        return min(pin.versions) if pin is not None and is_pinned else None

    def _policies_of(self, config: ModelConfig) -> tuple[VersionPolicy, VersionPolicy]:
        """Returns a model's policy in the list of models, and its policy in force; a new list of models ends a pin."""
        policy, pinned = self._pinned.get(config.name, (config.policy, None))
        return (policy if config.policy is pinned else config.policy), config.policy

    def _find(self, model: str) -> tuple[tuple[ModelConfig, ...], ModelConfig]:
        configs = self._models.configs
        one = next((config for config in configs if config.name == model), None)
        if one is None:
            raise ModelNotFound(f"Servable not found for request: Latest({model})")
        return configs, one

    def _change(self, before: tuple[ModelConfig, ...], one: ModelConfig, changed: ModelConfig) -> None:
        def agree() -> None:
            if self._models.configs != before:
                raise ConfigConflict("The list of models changed meanwhile; look at it, and try again.")

        self._models.reload([changed if config is one else config for config in before], agree=agree)

    def reload_config(self, engine: Engine, text: str | None) -> list[str]:
        """Replaces the list of models for a request to the admin port; returns the models' names.

        Args:
          text: a list in the text form of ModelServerConfig; None: the --model_config_file is read again.
        """
        if text is not None:
            models = parse_config_text(text, "The body") or ()
            engine.reload(models, origin="admin")
        elif self._file is None:
            raise ConfigConflict("There is no --model_config_file to be read; send a list of models.")
        else:
            models = self._file.reload_now(partial(engine.reload, origin="operator"))
        return sorted(model.name for model in models)

    def read_again(self) -> None:
        if self._file is not None:
            self._file.poll_once(partial(self.reload, origin="operator"))

    def watch(self, stop: threading.Event) -> None:
        interval_s = self._settings.model_config_file_poll_wait_seconds
        if self._file is not None and interval_s > 0:
            reload = partial(self.reload, origin="operator")
            repeat(partial(self._file.poll_once, reload), stop, interval_s, "config-file")
