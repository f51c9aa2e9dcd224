"""Keeps the models of the reference: finds versions by the policies of the engine, and leases them to requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from service.configuration.settings import Settings
from service.engine.load_rules import LoadRules
from service.engine.model_config import ModelConfig
from service.engine.model_set import ModelSet
from service.engine.registry import Registry
from service.reference.flags import check_models
from service.reference.model import Model, load_model
from service.types import ModelRef


class Models:
    """The models of a list, polled for new versions. Concurrency: any thread."""

    def __init__(self, settings: Settings) -> None:
        self.registry = Registry(lambda name, status: None, is_strict=settings.strict_readiness)
        rules = LoadRules(
            load=partial(load_model, settings),
            max_retries=settings.max_num_load_retries,
            retry_interval_s=settings.load_retry_interval_s,
            settle_s=settings.version_settle_s,
            load_timeout_s=settings.load_timeout_s,
            reloads_replaced=settings.reload_replaced_versions,
        )
        self.set = ModelSet(
            self.registry,
            rules,
            poll_interval_s=settings.file_system_poll_wait_seconds,
            reload_timeout_s=settings.model_reload_timeout_s,
            allow_labels_for_unavailable=settings.allow_version_labels_for_unavailable_models,
        )

    def start(self, configs: Sequence[ModelConfig]) -> None:
        """Starts to serve a list of models, without waiting until they are loaded; raises StartError."""
        check_models(configs)
        self.set.start(configs)

    @contextmanager
    def lease(self, ref: ModelRef) -> Iterator[Model]:
        """Keeps the version that a reference names loaded for one request.

        Raises:
          ModelNotFound, VersionNotFound, LabelNotFound, NotReady: there is no version that can answer.
        """
        with self.registry.lease(ref) as servable:
            assert isinstance(servable, Model)
            yield servable

    def problems(self) -> dict[str, str]:
        names = self.registry.models()
        return {name: problem for name in names if (problem := self.registry.problem(name))}
