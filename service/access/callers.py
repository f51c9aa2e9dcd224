"""Finds the caller that a token or a client certificate belongs to, and the caller's rights on each model.

The module reads no file and knows no wire: a transport passes a request's credentials and gets a Grant.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, get_args

from service.errors import PermissionDenied, Unauthenticated

# Rights of a caller on a model. "predict": run signatures and read rows of tables. "metadata": see the model, its
# versions, signatures and tables. "admin": change rows of its tables; a caller with this right on all models may also
# change the list of models.
Right = Literal["predict", "metadata", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)
# Parts of the server that --auth_config may open to requests without credentials: see docs/security.md.
Part = Literal["health", "reflection", "docs", "console", "metrics"]
PARTS: tuple[Part, ...] = get_args(Part)
_NONE: frozenset[Right] = frozenset()
# Maximum number of entries in the cache of a token's digest -> its caller, which saves comparing a token with the
# tokens of all callers.
_MAX_SEEN = 4096
_SCHEME = b"bearer "
_MAX_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Rule:
    """A list of rights on a list of models; the name "ads*" means all models whose names begin with "ads".

    >>> Rule(("news-*",), frozenset({"predict"})).models
    ('news-*',)
    """

    models: tuple[str, ...]
    rights: frozenset[Right]


class Grant:
    """The rights of one caller of the --auth_config file, on each model. Concurrency: any thread.

    >>> grant = Grant("ranker", [Rule(("movielens", "news-*"), frozenset({"predict"}))])
    >>> sorted(grant.rights("news-eu")), sorted(grant.rights("ads")), sorted(grant.everywhere)
    (['predict'], [], [])
    """

    __slots__ = ("name", "everywhere", "_exact", "_prefixes")

    def __init__(self, name: str, rules: Sequence[Rule] = ()) -> None:
        self.name = name
        exact: dict[str, frozenset[Right]] = {}
        prefixes: dict[str, frozenset[Right]] = {}
        for rule in rules:
            for pattern in rule.models:
                found, key = (prefixes, pattern[:-1]) if pattern.endswith("*") else (exact, pattern)
                found[key] = found.get(key, _NONE) | rule.rights
        self.everywhere = prefixes.get("", _NONE)
        self._exact: Mapping[str, frozenset[Right]] = exact
        self._prefixes = tuple(prefixes.items())

    def rights(self, model: str) -> frozenset[Right]:
        rights = self._exact.get(model, _NONE)
        for prefix, more in self._prefixes:
            if model.startswith(prefix):
                rights |= more
        return rights

    def require_everywhere(self, right: Right) -> None:
        """Raises PermissionDenied unless the caller has the right on all models, also on models added later."""
        if right not in self.everywhere:
            raise PermissionDenied(f'Caller "{self.name}" needs the right "{right}" on all models for this request.')


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller of the --auth_config file, with its credentials and rights.

    digests: SHA-256 of the caller's tokens. certificates: names in its client certificates, as
      names_of_certificate() spells them.
    """

    name: str
    rules: tuple[Rule, ...]
    digests: tuple[bytes, ...] = field(default=(), repr=False)
    certificates: tuple[str, ...] = ()


class Callers:
    """The current list of callers, which a reload of --auth_config replaces. Concurrency: any thread.

    current: the grant of the request that runs in this context. nobody: the grant of a request without credentials.
    generation: number of replacements of the list of callers. listed: the list now.
    sessions: digest of a console session's credential, which the native core computes from a request -> the digest of
      the session's token, and the session's end. Only sessions that send data requests are here.
    on_change: called after each change of the list, or of the sessions.
    """

    def __init__(self, callers: Sequence[Caller], open_parts: Collection[Part]) -> None:
        self.nobody = Grant("")
        self.current: ContextVar[Grant] = ContextVar("grant", default=self.nobody)
        self._known = _Known(callers, open_parts)
        self.listed = tuple(callers)
        self.sessions: dict[bytes, tuple[bytes, float]] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.generation = 0

    def replace(self, callers: Sequence[Caller], open_parts: Collection[Part]) -> None:
        """Replaces the list of callers for new requests; requests that run already keep their caller's grant."""
        self._known = _Known(callers, open_parts)
        self.listed = tuple(callers)
        self.generation += 1
        self.on_change()

    def is_open(self, part: Part) -> bool:
        return part in self._known.open_parts

    def authenticate(self, authorization: bytes | None, names: Collection[str] = ()) -> Grant:
        """Returns the rights (the grant) of the caller to whom a request's credentials belong.

        Args:
          authorization: value of the Authorization header; None: there is no such header; b"": there are several.
          names: names in the verified client certificate; they count only without an Authorization header.

        Raises:
          Unauthenticated: the credentials belong to no caller; the text is the same for every cause.
        """
        known = self._known
        grant = known.of_names(names) if authorization is None else known.of_header(authorization)
        if grant is None:
            raise Unauthenticated("Valid credentials are required: Authorization: Bearer <token>, or a certificate.")
        return grant

    def of_digest(self, digest: bytes) -> Grant | None:
        return self._known.of_digest(digest)

    @contextmanager
    def acting(self, grant: Grant) -> Iterator[None]:
        token = self.current.set(grant)
        try:
            yield
        finally:
            self.current.reset(token)

    def require_everywhere(self, right: Right, part: Part | None = None) -> None:
        """Raises PermissionDenied unless `part` is open to everybody, or the caller has the right on all models."""
        if part is None or not self.is_open(part):
            self.current.get().require_everywhere(right)


def digest_of(token: bytes) -> bytes:
    return sha256(token.strip()).digest()


class _Known:
    def __init__(self, callers: Sequence[Caller], open_parts: Collection[Part]) -> None:
        self.open_parts = frozenset(open_parts)
        by_caller = [(Grant(caller.name, caller.rules), caller) for caller in callers]
        self._digests = [(digest, grant) for grant, caller in by_caller for digest in caller.digests]
        self._names = {name: grant for grant, caller in by_caller for name in caller.certificates}
        self._seen: dict[bytes, Grant] = {}

    def of_header(self, value: bytes) -> Grant | None:
        if len(value) > _MAX_TOKEN_BYTES or value[: len(_SCHEME)].lower() != _SCHEME:
            return None
        return self.of_digest(digest_of(value[len(_SCHEME) :]))

    def of_digest(self, digest: bytes) -> Grant | None:
        # The time of this dict lookup does not help to guess a token: it depends on SHA-256 digests, and a digest that
        # is nearly right does not lead to a token.
        seen = self._seen.get(digest)
        if seen is not None:
            return seen
        found = None
        for known, grant in self._digests:
            # The loop compares all digests even after a match, so that its time does not show which caller matched.
            if hmac.compare_digest(known, digest):
                found = grant
        if found is not None and len(self._seen) < _MAX_SEEN:
            self._seen[digest] = found
        return found

    def of_names(self, names: Collection[str]) -> Grant | None:
        found = {id(grant): grant for name in names if (grant := self._names.get(name)) is not None}
        # A certificate with names of two different callers authenticates neither of them.
        return next(iter(found.values())) if len(found) == 1 else None


_KINDS = {"DNS": "DNS", "URI": "URI", "IP Address": "IP", "email": "email"}
NO_NAMES: frozenset[str] = frozenset()


def names_of_certificate(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Returns the names in a certificate that Python's ssl has parsed, each with its kind, such as "DNS:a.example".

    >>> sorted(names_of_certificate({"subject": ((("commonName", "a"),),), "subjectAltName": (("DNS", "a.example"),)}))
    ['CN:a', 'DNS:a.example']
    """
    if not certificate:
        return NO_NAMES
    names = {f"CN:{value}" for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"}
    alternatives = certificate.get("subjectAltName", ())
    return frozenset(names | {f"{_KINDS[kind]}:{value}" for kind, value in alternatives if kind in _KINDS})


def names_of_transport(transport: asyncio.BaseTransport) -> frozenset[str]:
    # The names come from a verified certificate: Python and uvloop give a certificate's fields only after they have
    # verified its chain.
    return names_of_certificate(transport.get_extra_info("peercert"))
