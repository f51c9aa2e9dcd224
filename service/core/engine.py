"""The one door to the models: bind a signature, run it, ask what is served. Every transport uses it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from service.core.batching.batcher import Batcher
from service.core.errors import (
    BackendFailure,
    ConfigConflict,
    DeadlineExceeded,
    InputMismatch,
    ModelNotFound,
    PayloadTooLarge,
    ServiceError,
    SignatureNotFound,
    TableNotFound,
    UnfitSignature,
    UnknownOutput,
)
from service.core.inference import INPUTS, Classification, Regression, result_of, wanted_outputs
from service.core.model_config import ModelConfig
from service.core.registry import Registry
from service.core.servable import Lease, Servable, find_signature
from service.core.types import (
    DEFAULT_SIGNATURE,
    Array,
    Backend,
    ModelRef,
    SignatureKind,
    SignatureSpec,
    TableInfo,
    Tensors,
    VersionStatus,
)
from service.core.validation import check_names, checked


class Observer(Protocol):
    """Learns of every finished request. Concurrency: any thread; must not raise."""

    def finished(
        self,
        *,
        api: str,
        method: str,
        model: str,
        version: int | None,
        signature: str,
        kind: SignatureKind,
        error: BaseException | None,
        seconds: float,
        run_seconds: float,
        rows: int,
    ) -> None:
        """Takes what a request was for, and how it went.

        model and signature are "" where the request named none that exists, so labels stay bounded. kind tells
        whether a graph ran; run_seconds is the part of seconds that the backend took.
        """
        ...


# (new list of models, deadline on the engine's clock or None): core.model_set's reload.
Reload = Callable[[Sequence[ModelConfig], float | None], None]


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Name, resolved version and signatures of a servable."""

    name: str
    version: int
    signatures: Mapping[str, SignatureSpec]

    def signature(self, name: str = "", fallback: str = "") -> SignatureSpec:
        """Returns a signature as Engine.bind chooses it; raises SignatureNotFound."""
        return find_signature(self.signatures, name, fallback)


class Bound:
    """A signature of one servable, held for one request: `with engine.bind(...) as bound`.

    Concurrency: one caller at a time.
    """

    __slots__ = (
        "spec",
        "_servable",
        "_lease",
        "_observer",
        "_api",
        "_method",
        "_clock",
        "_started_s",
        "_max_bytes",
        "_rows",
        "_run_s",
    )

    def __init__(
        self,
        spec: SignatureSpec,
        servable: Servable,
        lease: Lease,
        *,
        observer: Observer,
        api: str,
        method: str,
        clock: Callable[[], float],
        started_s: float,
        max_response_bytes: int,
    ) -> None:
        self.spec = spec
        self._servable = servable
        self._lease = lease
        self._observer = observer
        self._api = api
        self._method = method
        self._clock = clock
        self._started_s = started_s
        self._max_bytes = max_response_bytes
        self._rows = 0
        self._run_s = 0.0

    @property
    def model(self) -> str:
        """The served name."""
        return self._servable.name

    @property
    def version(self) -> int:
        """The version that answers, also where the request asked for the latest."""
        return self._servable.version

    def run(
        self, inputs: Tensors, output_filter: tuple[str, ...] = (), deadline_s: float | None = None
    ) -> dict[str, Array]:
        """Validates, runs and returns the outputs by name.

        A lookup answers the features that were sent. An output_filter keeps only the outputs it names.

        Args:
          deadline_s: on the engine's clock; work whose deadline has passed is not begun.

        Raises:
          ServiceError: whatever core.errors lists; anything else a backend raises becomes BackendFailure.
        """
        backend = self._servable.backend(self.spec)
        if output_filter:
            # Wrong names are told before a wrong filter, and that before a wrong dtype, as TensorFlow Serving does.
            check_names(self.spec, inputs)
        outputs = self._choose_outputs(output_filter)
        arrays, self._rows = checked(self.spec, inputs)
        if self._rows * self.spec.row_bytes > self._max_bytes:
            # A row costs a client two bytes and the server kilobytes, so a limit on requests bounds nothing here.
            raise PayloadTooLarge(
                f"The answer would hold {self._rows} rows of {self.spec.row_bytes} bytes, this server's limit is "
                f"{self._max_bytes} bytes; send fewer rows per request."
            )
        return self._run(backend, arrays, outputs, deadline_s)

    def check_names(self, names: Mapping[str, object]) -> None:
        """Raises InputMismatch where a request's input names are not the signature's; run does so by itself."""
        check_names(self.spec, names)

    def infer(self, method_name: str, examples: Array, deadline_s: float | None = None) -> Classification | Regression:
        """Classifies serialized Examples, or regresses over them.

        Args:
          method_name: core.inference's.
          examples: [B] objects (bytes). The graph says whether its input takes strings: signatures are known to lie.

        Raises:
          UnfitSignature: the signature is not of that kind.
          ServiceError: as run does.
        """
        outputs = wanted_outputs(self.spec, method_name)
        backend = self._servable.backend(self.spec)
        if self.spec.kind == "lookup":
            # Kernels have no signature's dtype to hold strings against; a graph has.
            raise InputMismatch("Expects arg[0] to be int64 but string is provided")
        self._rows = examples.size
        results = self._run(backend, {INPUTS: examples}, outputs, deadline_s)
        return result_of(method_name, results, examples.size)

    def _run(
        self, backend: Backend, arrays: dict[str, Array], outputs: tuple[str, ...], deadline_s: float | None
    ) -> dict[str, Array]:
        if deadline_s is not None and self._clock() >= deadline_s:
            raise DeadlineExceeded("The deadline passed before the request was run.")
        try:
            started_s = self._clock()
            if isinstance(backend, Batcher):
                results = backend.run(self.spec.name, arrays, outputs, deadline_s)
            else:
                results = backend.run(self.spec.name, arrays, outputs)
            self._run_s += self._clock() - started_s
            return results
        except ServiceError:
            raise
        except Exception as error:
            raise BackendFailure("The server failed to run this request; its log has the cause.") from error

    def _choose_outputs(self, output_filter: tuple[str, ...]) -> tuple[str, ...]:
        if not output_filter:
            return tuple(self.spec.outputs)
        known = ",".join(sorted(self.spec.outputs))
        for name in output_filter:
            if name not in self.spec.outputs:
                raise UnknownOutput(
                    f"output tensor alias not found in signature: {name} Outputs expected to be in the set {{{known}}}."
                )
            if output_filter.count(name) > 1:
                raise UnknownOutput(f"duplicate output tensor alias: {name}")
        return output_filter

    def __enter__(self) -> Bound:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Reported while the lease is held: a version must not be counted again after its series were dropped.
        try:
            self._observer.finished(
                api=self._api,
                method=self._method,
                model=self._servable.name,
                version=self._servable.version,
                signature=self.spec.name,
                kind=self.spec.kind,
                error=error,
                seconds=self._clock() - self._started_s,
                run_seconds=self._run_s,
                rows=self._rows,
            )
        finally:
            self._lease.__exit__(kind, error, trace)


class Engine:
    """Answers for all models of a registry. Concurrency: any thread.

    Args:
      clock: seconds, monotonic.
      max_response_bytes: largest answer, as arrays: rows times the bytes of one row of all outputs.
      reload: replaces the list of models; None: it is fixed.
    """

    def __init__(
        self,
        registry: Registry,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_response_bytes: int = 2**31 - 1,
        reload: Reload | None = None,
    ) -> None:
        self._registry = registry
        self._reload = reload
        self._observer = observer
        self._max_response_bytes = max_response_bytes
        self._clock = clock

    @property
    def clock(self) -> Callable[[], float]:
        """What deadlines are measured on (seconds, monotonic)."""
        return self._clock

    def bind(
        self,
        ref: ModelRef,
        signature_name: str,
        *,
        api: str,
        method: str = "",
        started_s: float | None = None,
        unknown_signature: str = "",
        fallback_signature: str = "",
    ) -> Bound:
        """Resolves and holds a signature; use the result in a `with` block.

        Args:
          signature_name: "" means serving_default.
          api, method: the wire's name in metrics, such as "http" or "grpc", and the method's, spelt as on that wire.
          started_s: on the engine's clock, when the request was there; None: now.
          unknown_signature: what UnfitSignature says in place of SignatureNotFound; {} stands for the name.
          fallback_signature: what "" means where a model has no serving_default.

        Raises:
          ModelNotFound, VersionNotFound, LabelNotFound, NotReady, SignatureNotFound, UnfitSignature.
        """
        if started_s is None:
            started_s = self._clock()
        lease: Lease | None = None
        try:
            lease = self._registry.lease(ref)
            servable = lease.__enter__()
            spec = servable.signature(signature_name, fallback_signature)
        except ServiceError as caught:
            error = caught
            if unknown_signature and isinstance(caught, SignatureNotFound):
                error = UnfitSignature(unknown_signature.format(signature_name or DEFAULT_SIGNATURE))
            if lease is not None:
                lease.__exit__(type(error), error, None)
            self.reject(error, api=api, method=method, model=ref.name, started_s=started_s)
            raise error from (None if error is caught else caught)
        return Bound(
            spec,
            servable,
            lease,
            observer=self._observer,
            api=api,
            method=method,
            clock=self._clock,
            started_s=started_s,
            max_response_bytes=self._max_response_bytes,
        )

    def reject(
        self, error: ServiceError, *, api: str, method: str = "", model: str = "", started_s: float | None = None
    ) -> None:
        """Counts a request that failed before it was bound, such as one that could not be parsed.

        Args:
          model: as the request has it, which may be anything.
        """
        self._observer.finished(
            api=api,
            method=method,
            model=model if self._registry.is_configured(model) else "",
            version=None,
            signature="",
            kind="lookup",
            error=error,
            seconds=0.0 if started_s is None else self._clock() - started_s,
            run_seconds=0.0,
            rows=0,
        )

    def describe(self, ref: ModelRef) -> ModelDescription:
        """Returns a servable's signatures; raises as bind does."""
        with self._registry.lease(ref) as servable:
            return ModelDescription(servable.name, servable.version, servable.signatures)

    def statuses(self, name: str, version: int | None = None) -> list[VersionStatus]:
        """Returns states of a model's versions, newest first; raises ModelNotFound or VersionNotFound."""
        return self._registry.statuses(name, version)

    def reload(self, models: Sequence[ModelConfig], deadline_s: float | None = None) -> None:
        """Replaces the list of models, all of it or nothing; blocks. See core.model_set for what it raises."""
        if self._reload is None:
            raise ConfigConflict("The models of this server are fixed.")
        self._reload(models, deadline_s)

    def models(self) -> list[str]:
        """Names of the configured models."""
        return self._registry.models()

    def all_statuses(self) -> dict[str, list[VersionStatus]]:
        """Returns the states of every configured model's versions, newest first; none where no folder was found yet."""
        result: dict[str, list[VersionStatus]] = {}
        for name in self.models():
            try:
                result[name] = self.statuses(name)
            except ModelNotFound:
                result[name] = []
        return result

    def tables(self, ref: ModelRef) -> list[TableInfo]:
        """Returns the tables of a servable, by name; empty where it has no manifest."""
        with self._registry.lease(ref) as servable:
            return [servable.tables[name].info for name in sorted(servable.tables)]

    def table_rows(self, ref: ModelRef, table_name: str, ids: Array) -> Array:
        """Returns [N, D] rows of a table for [N] int64 ids; raises TableNotFound, IdOutOfRange."""
        with self._registry.lease(ref) as servable:
            table = servable.tables.get(table_name)
            if table is None:
                known = ", ".join(sorted(servable.tables)) or "none"
                raise TableNotFound(f'Model "{ref.name}" has no table "{table_name}". Tables: {known}.')
            return table.rows(ids)

    @property
    def is_ready(self) -> bool:
        """Whether every configured model can answer."""
        return self._registry.is_ready

    def problems(self) -> dict[str, str]:
        """Says for each model that can not answer why not."""
        return {name: problem for name in self.models() if (problem := self._registry.problem(name))}
