"""The blocking client: EmbeddingClient sends requests to an embedding server and waits for the answers."""

from __future__ import annotations

import random as random_module
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

from embedding_client.bearer import Bearer, Token
from embedding_client.calls import Call, Flow, Reply
from embedding_client.errors import EmbeddingError
from embedding_client.inputs import FeatureIds, FeatureWeights, TensorInput
from embedding_client.methods import Methods
from embedding_client.retry import Attempts, RetryPolicy
from embedding_client.targets import Target, Tls
from embedding_client.types import Array, ModelMetadata, Neighbors, Outputs, TableDescription, VersionStatus

T = TypeVar("T")


class _Transport(Protocol):
    def send(self, call: Call[Any], timeout_s: float) -> Reply: ...

    def close(self) -> None: ...


class EmbeddingClient:
    """The client of one model on a server, for embeddings and predictions; numpy arrays in, numpy arrays out.

        with EmbeddingClient("localhost:8500", model="movielens") as client:
            client.lookup({"user_id": [1, 2], "genres": [["Drama"], []]})["genres"]   # [2, D] float32

    Concurrency: any thread; all threads share its connections. A client must not be used on both sides of a fork.

    Args:
      target: "host:port" or "grpc://host:port" or "unix:/path" speaks gRPC, "http://host:port" HTTP; grpcs:// and
        https:// are the same over TLS.
      model: the model's name on the server.
      timeout_s: the limit of a whole call: all tries and the waits between them.
      retries: how often a call is tried again if the server can not be reached or answers UNAVAILABLE; no other error
        is tried again. A RetryPolicy also sets the waits between tries.
      tls: certificate files, where the system's authorities do not fit or the server asks for a client certificate.
      token: a bearer token, or a callable that returns it for each request. The client does not encrypt it: send it
        over TLS, or to this machine.
      http_target: "http://host:port" of the same server for `tables` and `rows`, which gRPC lacks.
      float_dtype: "float16" or "bfloat16": lookup and predict return float32 outputs rounded to this dtype, in answers
        of half the bytes.
      clock, sleep, random: monotonic seconds, waiting, and a number of [0, 1); for tests.

    Raises:
      ValueError: an argument can not be used.
      OSError: a certificate can not be read.
      ImportError: the target is gRPC, and grpcio is not installed.
    """

    def __init__(
        self,
        target: str,
        *,
        model: str,
        timeout_s: float = 1.0,
        retries: int | RetryPolicy = 2,
        tls: Tls | None = None,
        token: Token = None,
        http_target: str | None = None,
        float_dtype: str = "float32",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._methods = Methods(target, model, tls, http_target, float_dtype)
        self._bearer = Bearer(token)
        self._policy = retries if isinstance(retries, RetryPolicy) else RetryPolicy(retries)
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._random = random
        # Attempts() checks the client's timeout_s, so that a bad value fails in the constructor, not at the first call.
        self._attempts(None)
        self._transport = self._open(self._methods.target)
        tables_target = self._methods.tables_target
        self._tables_transport = self._transport if tables_target is None else self._open(tables_target)
        self._is_closed = False

    def lookup(
        self,
        features: Mapping[str, FeatureIds],
        weights: Mapping[str, FeatureWeights] | None = None,
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "lookup",
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> Outputs:
        """Looks up embeddings: {output: [B, D] float32}, or [B, L, D] for a sequence. An empty row gives zeros by
        default.

        Args:
          features: ids by feature. A flat list or [B] array is one id per row; a list of lists, a [B, K] array or
            RaggedIds is a ragged feature, whatever its lengths. Ids are integers, or strings if the feature has a
            vocabulary.
          weights: for ragged features, one factor per id, nested as the ids or flat.
          version, label: the model version, by number or by label; default: the latest.
          outputs: the outputs to return; default: all.
          timeout_s: replaces the client's timeout_s for this call.

        Raises:
          EmbeddingError: embedding_client.errors lists its classes.
        """
        flow = self._methods.lookup(
            features, weights, version=version, label=label, signature=signature, outputs=outputs
        )
        return self._run(flow, self._transport, timeout_s)

    def predict(
        self,
        inputs: Mapping[str, TensorInput],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "serving_default",
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> Outputs:
        """Runs any signature of the model, and returns its outputs by name.

        Args:
          inputs: tensors by name. Arrays are dense and keep their dtype. RaggedIds, and lists of integers or strings
            two deep, are ragged features under their plain name; all other lists are dense, floats as float32.
          version, label, outputs, timeout_s: as in lookup.

        Raises:
          EmbeddingError: embedding_client.errors lists its classes.
        """
        flow = self._methods.predict(inputs, version=version, label=label, signature=signature, outputs=outputs)
        return self._run(flow, self._transport, timeout_s)

    def tables(
        self, version: int | None = None, label: str | None = None, *, timeout_s: float | None = None
    ) -> tuple[TableDescription, ...]:
        """Returns the model's embedding tables by name. `tables` and `rows` need HTTP: gRPC has no such methods.

        Raises:
          EmbeddingError: Unimplemented if the client has no HTTP address; the other classes as in lookup.
        """
        return self._run(self._methods.tables(version, label), self._tables_transport, timeout_s)

    def rows(
        self,
        table: str,
        ids: Sequence[int] | Array,
        *,
        version: int | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
    ) -> Array:
        """Returns the stored rows of N ids, not combined: [N, D] float32. Needs an HTTP address of the server.

        Raises:
          EmbeddingError: Unimplemented if the client has no HTTP address; the other classes as in lookup.
        """
        flow = self._methods.rows(table, ids, version=version, label=label)
        return self._run(flow, self._tables_transport, timeout_s)

    def neighbors(
        self,
        table: str,
        *,
        ids: Sequence[int] | Array | None = None,
        keys: Sequence[Any] | Array | None = None,
        vectors: Sequence[Sequence[float]] | Array | None = None,
        labels: Sequence[str] | bool | None = None,
        k: int | None = None,
        metric: str | None = None,
        feature: str | None = None,
        filter_ids: Sequence[int] | Array | None = None,
        filter_keys: Sequence[Any] | Array | None = None,
        exclude_ids: Sequence[int] | Array | None = None,
        exclude_keys: Sequence[Any] | Array | None = None,
        include_self: bool | None = None,
        exact: bool | None = None,
        version: int | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
    ) -> Neighbors:
        """Finds the rows of a table that are nearest to its rows named by ids, keys or labels, or to [Q, D] vectors.

        Args:
          ids, keys, vectors, labels: the queries; exactly one of the four. With `labels=True` beside one of the others,
            and for queries by label, the result has the labels of the rows.
          k: most neighbours of each query; default: 10.
          metric: "dot", "cosine", or "l2", the squared Euclidean distance; default: "dot".
          feature: the feature whose vocabulary has the keys, if the table has several vocabularies.
          filter_ids, filter_keys: the only rows that may be neighbours. exclude_ids, exclude_keys: rows that may not.
          include_self: whether a row may be its own neighbour.
          exact: whether all rows are compared, although the table has an index.
          version, label, timeout_s: as in lookup.

        Raises:
          EmbeddingError: Unimplemented for tables that can not be searched; the other classes as in lookup.
        """
        search = {
            "ids": ids,
            "keys": keys,
            "vectors": vectors,
            "labels": labels,
            "k": k,
            "metric": metric,
            "feature": feature,
            "filter_ids": filter_ids,
            "filter_keys": filter_keys,
            "exclude_ids": exclude_ids,
            "exclude_keys": exclude_keys,
            "include_self": include_self,
            "exact": exact,
        }
        flow = self._methods.neighbors(table, search, version=version, label=label)
        return self._run(flow, self._transport, timeout_s)

    def status(self, version: int | None = None, *, timeout_s: float | None = None) -> tuple[VersionStatus, ...]:
        """Returns the states of the model's versions, newest first; raises EmbeddingError."""
        return self._run(self._methods.status(version), self._transport, timeout_s)

    def metadata(
        self, version: int | None = None, label: str | None = None, *, timeout_s: float | None = None
    ) -> ModelMetadata:
        """Returns the signatures of one version of the model; raises EmbeddingError."""
        return self._run(self._methods.metadata(version, label), self._transport, timeout_s)

    def close(self) -> None:
        """Closes the client's connections. Calls in flight may fail; later calls raise RuntimeError."""
        self._is_closed = True
        self._transport.close()
        self._tables_transport.close()

    def __enter__(self) -> EmbeddingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._methods.target)!r}, model={self._methods.model!r})"

    def _open(self, target: Target) -> _Transport:
        # grpc_transport is imported only for a gRPC address, so that a client over HTTP does not need the package
        # grpcio.
        if target.wire == "grpc":
            from embedding_client.grpc_transport import GrpcTransport

            return GrpcTransport(target, self._bearer)
        from embedding_client.http_pool import HttpTransport

        return HttpTransport(target, self._clock, self._bearer)

    def _attempts(self, timeout_s: float | None) -> Attempts:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return Attempts(self._policy, timeout_s, self._clock, self._random)

    def _run(self, flow: Flow[T], transport: _Transport, timeout_s: float | None) -> T:
        if self._is_closed:
            raise RuntimeError("the client is closed")
        attempts = self._attempts(timeout_s)
        advance: Callable[[Any], Call[Any]] = flow.send
        answer: Any = None
        while True:
            try:
                call = advance(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                advance, answer = flow.send, self._send_with_retries(call, transport, attempts)
            except EmbeddingError as error:
                advance, answer = flow.throw, error

    def _send_with_retries(self, call: Call[T], transport: _Transport, attempts: Attempts) -> T:
        while True:
            try:
                return call.read(transport.send(call, attempts.start_try()))
            except EmbeddingError as error:
                self._sleep(attempts.wait_s(error))
