"""Runs one request on a leased servable: validates inputs, runs the signature, and counts the request at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from service.engine.admission import Admission
from service.engine.call import Call, Finished, Observer, Subject
from service.engine.deadline import DEADLINE_S
from service.engine.inference import INPUTS, Classification, Regression, result_of, wanted_outputs
from service.engine.recording import Recorder
from service.engine.refused_inputs import explained, shape_faults
from service.engine.servable import Lease, Servable
from service.engine.tracing import Tracing
from service.engine.validation import answer_bytes, check_names, check_outputs, checked
from service.errors import (
    BackendFailure,
    DeadlineExceeded,
    GraphRefusal,
    InputMismatch,
    PayloadTooLarge,
    ServiceError,
    UnknownOutput,
)
from service.types import Array, Backend, SignatureSpec, Tensors


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that all requests of an engine share, such as its clock and its observer; see class Engine."""

    observer: Observer
    clock: Callable[[], float]
    max_response_bytes: int
    strict_shapes: bool
    admission: Admission
    tracing: Tracing | None
    on_damage: Callable[[str], None]


class Bound:
    """One request's lease on a servable, with the signature to run: `with engine.bind(...) as bound`.

    Concurrency: one caller at a time.
    """

    __slots__ = (
        "spec",
        "_servable",
        "_lease",
        "_call",
        "_services",
        "_recorder",
        "_rows",
        "_run_s",
        "_held",
    )

    def __init__(
        self,
        spec: SignatureSpec,
        servable: Servable,
        lease: Lease,
        call: Call,
        services: Services,
        recorder: Recorder | None,
    ) -> None:
        self.spec = spec
        self._servable = servable
        self._lease = lease
        self._call = call
        self._services = services
        self._recorder = recorder
        self._rows = 0
        self._run_s = 0.0
        # The numbers of rows and bytes that the admission control has reserved for this request.
        self._held = (0, 0)

    @property
    def model(self) -> str:
        """The name of the leased servable's model."""
        return self._servable.name

    @property
    def version(self) -> int:
        """The version of the leased servable, even if the request named none."""
        return self._servable.version

    @property
    def may_wait(self) -> bool:
        """Whether a run of the signature may wait for another machine, which holds a remote table."""
        return self.spec.name in self._servable.remote_lookups

    def run(self, inputs: Tensors, output_filter: tuple[str, ...] = ()) -> dict[str, Array]:
        """Validates a request's inputs, runs the signature on them, and returns the outputs by name.

        A lookup returns outputs for the features that were sent. An output_filter keeps only the outputs that it names.

        Raises:
          ServiceError: a fault of the request or of the server; any other error of a backend becomes BackendFailure.
        """
        backend = self._servable.backend(self.spec)
        if output_filter:
            # The order of checks decides which error a client sees, and is TensorFlow Serving's: input names, output
            # filter, dtypes.
            check_names(self.spec, inputs)
        outputs = self._choose_outputs(output_filter)
        arrays, self._rows = checked(self.spec, inputs)
        check_outputs(self.spec, arrays, output_filter)
        if self._services.strict_shapes and self.spec.kind == "predict":
            # Lookups hold their shapes against the signature without the flag, in checked().
            if faults := shape_faults(self.spec, inputs):
                raise InputMismatch(faults)
        size = answer_bytes(self.spec, arrays, self._rows, outputs)
        if size > self._services.max_response_bytes:
            # The size of answers has a limit of its own, because two bytes of a request can ask for a row of several
            # kilobytes in the answer.
            raise PayloadTooLarge(
                f"The answer would hold {size} bytes for {self._rows} rows, this server's limit is "
                f"{self._services.max_response_bytes} bytes; send fewer rows per request."
            )
        self._reserve(self._rows, size)
        try:
            results = self._run(backend, arrays, outputs)
        except GraphRefusal as refusal:
            raise GraphRefusal(explained(refusal.message, self.spec, inputs)) from refusal
        recorder = self._recorder
        if recorder is not None and recorder.draw.is_chosen():
            recorder.predicted(
                self.spec, self._servable.version, inputs=inputs, output_filter=output_filter, outputs=results
            )
        return results

    def check_names(self, names: Mapping[str, object]) -> None:
        """Raises InputMismatch if the names of a request's inputs do not fit the signature; run() checks the same."""
        check_names(self.spec, names)

    def infer(self, method_name: str, examples: Array) -> Classification | Regression:
        """Runs the signature on serialized tf.Examples, and returns a classification or regression.

        Args:
          method_name: CLASSIFY_METHOD or REGRESS_METHOD of engine.inference.
          examples: [B] objects (bytes). The graph checks that its input takes strings, because SignatureDefs are often
            wrong there.

        Raises:
          UnfitSignature: the signature's inputs or outputs do not fit the method.
          ServiceError: as in run().
        """
        outputs = wanted_outputs(self.spec, method_name)
        backend = self._servable.backend(self.spec)
        if self.spec.kind == "lookup":
            # A lookup refuses serialized tf.Examples here: a graph would refuse strings for an integer input itself,
            # but the lookup kernels do not.
            raise InputMismatch("Expects arg[0] to be int64 but string is provided")
        self._rows = examples.size
        self._reserve(examples.size, answer_bytes(self.spec, {INPUTS: examples}, examples.size, outputs))
        results = self._run(backend, {INPUTS: examples}, outputs)
        result = result_of(method_name, results, examples.size)
        recorder = self._recorder
        if recorder is not None and recorder.draw.is_chosen():
            recorder.inferred(self.spec, self._servable.version, examples=examples, result=result)
        return result

    def _run(self, backend: Backend, arrays: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        deadline_s = self._call.deadline_s
        if deadline_s is not None and self._services.clock() >= deadline_s:
            raise DeadlineExceeded("The deadline passed before the request was run.")
        try:
            started_s = self._services.clock()
            if self._services.tracing is None:
                results = self._run_backend(backend, arrays, outputs)
            else:
                with self._services.tracing.run(self.spec, self._servable.name, self._servable.version):
                    results = self._run_backend(backend, arrays, outputs)
            self._run_s += self._services.clock() - started_s
            if self._servable.files.is_damaged:
                self._services.on_damage(self._servable.name)
                raise self._servable.data_loss()
            return results
        except ServiceError:
            raise
        except Exception as error:
            raise BackendFailure("The server failed to run this request; its log has the cause.") from error

    def _reserve(self, rows: int, size: int) -> None:
        self._services.admission.reserve(self._servable.name, rows, size)
        self._held = (self._held[0] + rows, self._held[1] + size)

    def _run_backend(self, backend: Backend, arrays: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        before = DEADLINE_S.set(self._call.deadline_s)
        try:
            return backend.run(self.spec.name, arrays, outputs)
        finally:
            DEADLINE_S.reset(before)

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
            self._services.admission.release(self._servable.name, *self._held)
            self._held = (0, 0)
        # The request is counted before its lease ends: later its version may be unloaded, and counting would create the
        # version's metrics again.
        try:
            servable, started_s = self._servable, self._call.started_s
            subject = Subject(self._call.api, self._call.method, servable.name, servable.version, self.spec.name)
            now_s = self._services.clock()
            seconds = now_s - (now_s if started_s is None else started_s)
            done = Finished(subject, self.spec.kind, error, seconds, self._run_s, self._rows)
            self._services.observer.finished(done)
        finally:
            self._lease.__exit__(kind, error, trace)
