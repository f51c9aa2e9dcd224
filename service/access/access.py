"""Reads the --auth_config file of callers, and gives the HTTP and gRPC servers an engine that checks their rights.

All routes and methods get the guarded engine in place of the engine, so none of them has to check rights or can forget
to. A caller without any right on a model is told that there is no such model.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from service.access.callers import PARTS, RIGHTS, Caller, Callers, Grant, Part, Right, Rule
from service.access.sessions import SecretError, Sessions, read_secrets
from service.artifact.files import read_plain_file
from service.configuration.settings import StartError
from service.control.engine import Engine
from service.control.request_context import Call, Observer
from service.errors import PermissionDenied, os_errors_as
from service.observe.reload_metrics import ReloadCounter
from service.types import ModelRef, VersionStatus
from service.versions.model_config import ModelConfig, Origin
from service.versions.registry import Registry
from service.versions.threads import repeat

# The right on a model that a caller needs for each method of Engine whose first argument names the model. `diff` needs
# "admin", because it reads whole tables.
RIGHT_OF: Mapping[str, Right] = {
    "describe": "metadata",
    "require_ready": "metadata",
    "statuses": "metadata",
    "tables": "metadata",
    "traffic": "metadata",
    "drift": "predict",
    "find_labels": "predict",
    "labels": "predict",
    "neighbors": "predict",
    "row_origin": "predict",
    "table_rows": "predict",
    "diff": "admin",
    "pin": "admin",
    "set_label": "admin",
    "upsert": "admin",
}
# What needs no right, because it says nothing about a model. `may_wait` only chooses the thread for a read.
OPEN = ("clock", "fault", "is_draining", "is_ready", "may_wait", "searches", "tracing")


class GuardedEngine(Engine):
    """An Engine that checks the current caller's rights before it reads or changes a model. Concurrency: any thread.

    Requests for a model on which the caller has no right go to an engine without models: they get the same texts,
    counts and codes as requests for a model that does not exist. A caller with some right on the model, but not the one
    that a method needs, gets PermissionDenied.
    """

    # Engine.__init__ is not called on purpose: an Engine method that this class does not override then fails for lack
    # of attributes, and can not skip the check of rights.
    def __init__(self, engine: Engine, absent: Engine, grant: Callable[[], Grant]) -> None:
        self._engine = engine
        self._absent = absent
        self._grant = grant

    def _for(self, model: str, right: Right) -> Engine:
        grant = self._grant()
        rights = grant.rights(model)
        if right in rights:
            return self._engine
        if not rights:
            return self._absent
        raise PermissionDenied(f'Caller "{grant.name}" lacks the right "{right}" on model "{model}".')

    def reject(self, error: Exception, call: Call, *, model: str = "") -> None:
        """Counts a failed request; a model that the caller can not see counts as an unknown one."""
        (self._engine if self._grant().rights(model) else self._absent).reject(error, call, model=model)

    def answered(self, call: Call, *, model: str = "") -> None:
        (self._engine if self._grant().rights(model) else self._absent).answered(call, model=model)

    def searches_by_signature(self, ref: ModelRef) -> bool:
        """Says whether requests for a model's signature "neighbors" are searches; also says yes for a model that the
        caller may not see.
        """
        return not self._grant().rights(ref.name) or self._engine.searches_by_signature(ref)

    def reload(
        self, models: Sequence[ModelConfig], deadline_s: float | None = None, *, origin: Origin = "client"
    ) -> None:
        """Replaces the list of models; the caller needs the right "admin" on all models, and may name any folder."""
        self._grant().require_everywhere("admin")
        self._engine.reload(models, deadline_s, origin="admin" if origin == "client" else origin)

    def models(self) -> list[str]:
        grant = self._grant()
        return [name for name in self._engine.models() if "metadata" in grant.rights(name)]

    def all_statuses(self) -> dict[str, list[VersionStatus]]:
        seen = set(self.models())
        return {name: statuses for name, statuses in self._engine.all_statuses().items() if name in seen}

    def problems(self) -> dict[str, str]:
        seen = set(self.models())
        return {name: problem for name, problem in self._engine.problems().items() if name in seen}


def _checked(method: str, right: Right) -> Callable[..., Any]:
    def guarded(self: GuardedEngine, model: ModelRef | str, /, *args: Any, **options: Any) -> Any:
        name = model if isinstance(model, str) else model.name
        try:
            engine = self._for(name, right)
        except PermissionDenied as error:
            # Methods with a Call count their requests, so a refused one is counted here.
            for call in args:
                if isinstance(call, Call):
                    self._engine.reject(error, call, model=name)
            raise
        return getattr(engine, method)(model, *args, **options)

    return guarded


def _open(name: str) -> property:
    return property(lambda self: getattr(self._engine, name))


for _name, _right in RIGHT_OF.items():
    setattr(GuardedEngine, _name, _checked(_name, _right))
for _name in OPEN:
    setattr(GuardedEngine, _name, _open(_name))


Text = tuple[bytes, str]
T = TypeVar("T")


class Counters(Protocol):
    """The counters of requests and of reloads of --auth_config; observe.metrics implements this protocol."""

    @property
    def requests(self) -> Observer: ...

    @property
    def auth(self) -> ReloadCounter: ...


@dataclass(frozen=True, slots=True)
class Access:
    """The callers of one --auth_config file, and an engine that checks the rights of the current request's caller.

    sessions: the console's sessions, which all HTTP ports share.
    """

    file: AuthFile
    engine: GuardedEngine
    sessions: Sessions

    @property
    def callers(self) -> Callers:
        return self.file.callers

    def metrics(self, render: Callable[[], Text]) -> Callable[[], Text]:
        """Wraps a function that renders metrics: it raises PermissionDenied unless the caller may see all models, or
        metrics are open to everybody.
        """

        def guarded() -> Text:
            self.callers.require_everywhere("metadata", "metrics")
            return render()

        return guarded

    def server_wide(self, read: Callable[[], T]) -> Callable[[], T]:
        """Wraps a function that reads server state: it raises PermissionDenied unless the caller may see all models."""

        def guarded() -> T:
            self.callers.require_everywhere("metadata")
            return read()

        return guarded

    def watch(self, stop: threading.Event, poll_interval_s: float) -> None:
        repeat(self.file.poll_once, stop, poll_interval_s, "auth-config")


def create_access(path: str, secret_path: str, engine: Engine, metrics: Counters) -> Access | None:
    """Returns the Access of the --auth_config file: its callers, an engine that checks their rights, and the console's
    sessions; None without a file.

    Args:
      path: the --auth_config file; "": the server has no such file.
      secret_path: the --console_secret_file; "": this process makes a secret, so sessions of the console end with it.

    Raises:
      StartError: a file can not be used.
    """
    if not path:
        if secret_path:
            raise StartError("--console_secret_file is given: only a server with --auth_config has sessions")
        return None
    try:
        file = AuthFile(Path(path), metrics.auth)
    except AuthConfigError as error:
        raise StartError(f"--auth_config={path}: {error}") from error
    absent = Engine(Registry(lambda model, status: None), metrics.requests, engine.clock)
    guarded = GuardedEngine(engine, absent, file.callers.current.get)
    return Access(file, guarded, _sessions(file.callers, secret_path))


def _sessions(callers: Callers, secret_path: str) -> Sessions:
    try:
        return Sessions(callers, read_secrets(Path(secret_path)) if secret_path else (secrets.token_bytes(),))
    except SecretError as error:
        raise StartError(f"--console_secret_file={secret_path}: {error}") from error


logger = logging.getLogger(__name__)

DEFAULT_OPEN: frozenset[Part] = frozenset({"health", "reflection", "docs", "console"})
_KEYS = frozenset({"open", "caller"})
_CALLER_KEYS = frozenset({"name", "token_sha256", "token_file", "certificate", "allow"})
_ALLOW_KEYS = frozenset({"models", "rights"})
_NAME = re.compile(r"[\w.@:/-]{1,128}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Form of a certificate's name in --auth_config: the kind of the name as callers.py writes it, a colon, the name.
_CERTIFICATE = re.compile(r"(CN|DNS|URI|IP|email):.+")
_MIN_TOKEN_BYTES = 16


class AuthConfigError(Exception):
    """The error that the --auth_config file can not be used; the message says where and why, and holds no token."""


@dataclass(frozen=True, slots=True)
class AuthConfig:
    callers: tuple[Caller, ...]
    open_parts: frozenset[Part]


def read_auth_config(path: Path) -> AuthConfig:
    """Reads the --auth_config file and the token files that it names; their paths are relative to its folder.

    Raises:
      AuthConfigError: the file has a fault; an unknown key is a fault too.
    """
    # The TOML parser is imported here and not at the top: it takes 5 ms of the start, and most servers have no
    # --auth_config.
    import tomllib

    text = _read(path)
    try:
        document = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # The TOML parser's error text may be shown: it quotes keys and single characters of the file, but no value, so
        # no token.
        raise AuthConfigError(f"it is not TOML: {error}") from None
    _no_others(document, _KEYS, "the file")
    callers = tuple(_caller(entry, path.parent) for entry in _tables(document, "caller"))
    if not callers:
        raise AuthConfigError("it has no [[caller]]; leave --auth_config out to let everybody in")
    _check_unique(callers)
    parts = _strings(document, "open", "the file", sorted(DEFAULT_OPEN))
    for part in parts:
        if part not in PARTS:
            raise AuthConfigError(f'open: expected some of {", ".join(PARTS)}, got "{part}"')
    return AuthConfig(callers, cast("frozenset[Part]", frozenset(parts)))


class AuthFile:
    """The watcher of the --auth_config file, which keeps the callers up to date. Concurrency: one caller at a time.

    Raises:
      AuthConfigError: the file can not be used.
    """

    def __init__(self, path: Path, counter: ReloadCounter) -> None:
        self._path = path
        self._counter = counter
        self._current = read_auth_config(path)
        self._complaint = ""
        counter.accepted()
        self.callers = Callers(self._current.callers, self._current.open_parts)

    def poll_once(self) -> None:
        """Reads the --auth_config file, and replaces the callers if its content changed.

        The fault of an invalid file is logged once, and the callers stay as they are.
        """
        try:
            # The --auth_config file is read at each poll, because its mtime and size do not show every change; reading
            # it takes microseconds.
            config = read_auth_config(self._path)
        except AuthConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._counter.refused()
                logger.error(
                    "auth config refused; the one before stays in force",
                    extra={"path": str(self._path), "reason": str(error)},
                )
            return
        if config == self._current:
            if self._complaint:
                # If an invalid --auth_config file is replaced by a file with the content in force, this counts as a
                # reload, and the callers stay.
                self._complaint = ""
                self._counter.accepted()
            return
        self.callers.replace(config.callers, config.open_parts)
        self._current, self._complaint = config, ""
        self._counter.accepted()
        logger.info("auth config accepted", extra={"path": str(self._path), "callers": len(config.callers)})


def _caller(entry: Mapping[str, Any], folder: Path) -> Caller:
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise AuthConfigError("each [[caller]] needs a name: up to 128 letters, digits and _ . @ : / -")
    where = f'caller "{name}"'
    _no_others(entry, _CALLER_KEYS, where)
    digests = []
    for text in _strings(entry, "token_sha256", where):
        if not _DIGEST.fullmatch(text):
            # The error does not quote the value of token_sha256: somebody may have written the token itself there.
            raise AuthConfigError(f"{where}: token_sha256 must be 64 lower-case hexadecimal digits")
        digests.append(bytes.fromhex(text))
    digests += [_digest_of_file(folder / text, where) for text in _strings(entry, "token_file", where)]
    certificates = _strings(entry, "certificate", where)
    for text in certificates:
        if not _CERTIFICATE.fullmatch(text):
            raise AuthConfigError(
                f'{where}: certificate "{text}": expected URI:..., DNS:..., CN:..., IP:... or email:...'
            )
    if not digests and not certificates:
        raise AuthConfigError(
            f"{where} has neither token_sha256 nor token_file nor certificate: it could never authenticate"
        )
    rules = tuple(_rule(allow, where) for allow in _tables(entry, "allow", where))
    return Caller(name, rules, tuple(digests), tuple(certificates))


def _rule(entry: Mapping[str, Any], where: str) -> Rule:
    _no_others(entry, _ALLOW_KEYS, f"{where}, allow")
    models, rights = (_strings(entry, key, f"{where}, allow") for key in ("models", "rights"))
    if not models or not rights:
        raise AuthConfigError(f"{where}: each allow needs models and rights")
    for model in models:
        if not model or "*" in model[:-1]:
            raise AuthConfigError(
                f'{where}: models: "{model}": expected a name, or the start of names with a "*" at its end'
            )
    for right in rights:
        if right not in RIGHTS:
            raise AuthConfigError(f'{where}: rights: expected some of {", ".join(RIGHTS)}, got "{right}"')
    return Rule(tuple(models), cast("frozenset[Right]", frozenset(rights)))


def _digest_of_file(path: Path, where: str) -> bytes:
    # The line break at the end of a token file is no part of the token: editors and `echo` add one.
    token = _read(path, f"{where}: ").strip()
    if len(token) < _MIN_TOKEN_BYTES or len(token.split()) != 1:
        raise AuthConfigError(f"{where}: {path} must hold one token of at least {_MIN_TOKEN_BYTES} bytes")
    return sha256(token).digest()


def _read(path: Path, where: str = "") -> bytes:
    with os_errors_as(AuthConfigError, f"{where}cannot read {path}"):
        return read_plain_file(path)


def _check_unique(callers: tuple[Caller, ...]) -> None:
    for what, found in (
        ("name", [(caller.name, caller.name) for caller in callers]),
        ("token", [(digest, caller.name) for caller in callers for digest in caller.digests]),
        ("certificate", [(name, caller.name) for caller in callers for name in caller.certificates]),
    ):
        owners: dict[str | bytes, str] = {}
        for value, name in found:
            if value in owners:
                raise AuthConfigError(f'two callers have the same {what}: "{owners[value]}" and "{name}"')
            owners[value] = name


def _tables(entry: Mapping[str, Any], key: str, where: str = "the file") -> Iterator[Mapping[str, Any]]:
    found = entry.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise AuthConfigError(
            f"{where}: {key} must be tables: [[{'caller' if where == 'the file' else 'caller.allow'}]]"
        )
    yield from found


def _strings(entry: Mapping[str, Any], key: str, where: str, default: list[str] | None = None) -> list[str]:
    found = entry.get(key, default or [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise AuthConfigError(f'{where}: {key} must be a list of strings: ["..."]')
    return found


def _no_others(entry: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    others = sorted(entry.keys() - known)
    if others:
        raise AuthConfigError(f"{where}: not known: {', '.join(others)}; expected {', '.join(sorted(known))}")
