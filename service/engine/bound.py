"""Runs one Classify or Regress request on a leased servable, in the native core, and counts the request at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from service.engine.call import Call, Finished, Observer, Subject
from service.engine.inference import INPUTS, Classification, Regression, result_of, wanted_outputs
from service.engine.recording import Recorder
from service.engine.servable import Lease, Servable
from service.engine.tracing import Tracing
from service.errors import DeadlineExceeded, InputMismatch, Unimplemented
from service.types import Array, SignatureSpec

# The text for a Predict, lookup or infer request that the native core forwarded, because it could not compile the
# version.
NOT_HERE = "The native core can not run this version; the server's log and its status page say why."


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that all requests of an engine share, such as its clock and its observer; see class Engine."""

    observer: Observer
    clock: Callable[[], float]
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

    @property
    def model(self) -> str:
        """The name of the leased servable's model."""
        return self._servable.name

    @property
    def version(self) -> int:
        """The version of the leased servable, even if the request named none."""
        return self._servable.version

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
        servable = self._servable
        servable.backend(self.spec)
        if self.spec.kind == "lookup":
            raise InputMismatch("Expects arg[0] to be int64 but string is provided")
        if servable.native is None:
            raise Unimplemented(servable.not_run.get(self.spec.name, "The server can not run this version."))
        self._rows = examples.size
        deadline_s = self._call.deadline_s
        if deadline_s is not None and self._services.clock() >= deadline_s:
            raise DeadlineExceeded("The deadline passed before the request was run.")
        started_s = self._services.clock()
        if self._services.tracing is None:
            found = servable.native.run(self.spec.name, {INPUTS: examples}, outputs)
        else:
            with self._services.tracing.run(self.spec, servable.name, servable.version):
                found = servable.native.run(self.spec.name, {INPUTS: examples}, outputs)
        self._run_s += self._services.clock() - started_s
        if servable.files.is_damaged:
            self._services.on_damage(servable.name)
            raise servable.data_loss()
        result = result_of(method_name, found, examples.size)
        recorder = self._recorder
        if recorder is not None and recorder.draw.is_chosen():
            recorder.inferred(self.spec, servable.version, examples=examples, result=result)
        return result

    def __enter__(self) -> Bound:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
