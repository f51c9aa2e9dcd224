"""A signature of one servable, held for one request, and what is told of each request at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol

from service.engine.admission import Admission
from service.engine.batcher import Batcher
from service.engine.inference import INPUTS, Classification, Regression, result_of, wanted_outputs
from service.engine.recording import Recorder
from service.engine.servable import Lease, Servable
from service.engine.tracing import Tracing
from service.engine.validation import check_names, check_outputs, checked
from service.errors import (
    BackendFailure,
    DeadlineExceeded,
    InputMismatch,
    PayloadTooLarge,
    ServiceError,
    UnknownOutput,
)
from service.types import Array, Backend, SignatureKind, SignatureSpec, Tensors


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
        "_on_damage",
        "_rows",
        "_run_s",
        "_admission",
        "_held",
        "_recorder",
        "_tracing",
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
        admission: Admission,
        recorder: Recorder | None = None,
        tracing: Tracing | None = None,
        on_damage: Callable[[str], None] = lambda model: None,
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
        self._on_damage = on_damage
        self._rows = 0
        self._run_s = 0.0
        self._admission = admission
        # Rows and bytes that were taken in for runs.
        self._held = (0, 0)
        self._recorder = recorder
        self._tracing = tracing

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
          ServiceError: whatever service.errors lists; anything else a backend raises becomes BackendFailure.
        """
        backend = self._servable.backend(self.spec)
        if output_filter:
            # Wrong names are told before a wrong filter, and that before a wrong dtype, as TensorFlow Serving does.
            check_names(self.spec, inputs)
        outputs = self._choose_outputs(output_filter)
        arrays, self._rows = checked(self.spec, inputs)
        check_outputs(self.spec, arrays, output_filter)
        if self._rows * self.spec.row_bytes > self._max_bytes:
            # A row costs a client two bytes and the server kilobytes, so a limit on requests bounds nothing here.
            raise PayloadTooLarge(
                f"The answer would hold {self._rows} rows of {self.spec.row_bytes} bytes, this server's limit is "
                f"{self._max_bytes} bytes; send fewer rows per request."
            )
        self._take(self._rows, self._rows * self.spec.row_bytes)
        results = self._run(backend, arrays, outputs, deadline_s)
        recorder = self._recorder
        if recorder is not None and recorder.draw.take():
            recorder.predicted(
                self.spec, self._servable.version, inputs=inputs, output_filter=output_filter, outputs=results
            )
        return results

    def check_names(self, names: Mapping[str, object]) -> None:
        """Raises InputMismatch where a request's input names are not the signature's; run does so by itself."""
        check_names(self.spec, names)

    def infer(self, method_name: str, examples: Array, deadline_s: float | None = None) -> Classification | Regression:
        """Classifies serialized Examples, or regresses over them.

        Args:
          method_name: engine.inference's.
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
        self._take(examples.size, examples.size * self.spec.row_bytes)
        results = self._run(backend, {INPUTS: examples}, outputs, deadline_s)
        result = result_of(method_name, results, examples.size)
        recorder = self._recorder
        if recorder is not None and recorder.draw.take():
            recorder.inferred(self.spec, self._servable.version, examples=examples, result=result)
        return result

    def _run(
        self, backend: Backend, arrays: dict[str, Array], outputs: tuple[str, ...], deadline_s: float | None
    ) -> dict[str, Array]:
        if deadline_s is not None and self._clock() >= deadline_s:
            raise DeadlineExceeded("The deadline passed before the request was run.")
        try:
            started_s = self._clock()
            if self._tracing is None:
                results = self._run_backend(backend, arrays, outputs, deadline_s)
            else:
                with self._tracing.run(self.spec, self._servable.name, self._servable.version):
                    results = self._run_backend(backend, arrays, outputs, deadline_s)
            self._run_s += self._clock() - started_s
            if self._servable.files.mark[0]:
                self._on_damage(self._servable.name)
                raise self._servable.data_loss()
            return results
        except ServiceError:
            raise
        except Exception as error:
            raise BackendFailure("The server failed to run this request; its log has the cause.") from error

    def _take(self, rows: int, size: int) -> None:
        self._admission.take(self._servable.name, rows, size)
        self._held = (self._held[0] + rows, self._held[1] + size)

    def _run_backend(
        self, backend: Backend, arrays: dict[str, Array], outputs: tuple[str, ...], deadline_s: float | None
    ) -> dict[str, Array]:
        if isinstance(backend, Batcher):
            return backend.run(self.spec.name, arrays, outputs, deadline_s)
        return backend.run(self.spec.name, arrays, outputs)

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
        if self._held != (0, 0):
            self._admission.give_back(self._servable.name, *self._held)
            self._held = (0, 0)
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
