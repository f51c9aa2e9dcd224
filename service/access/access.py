"""Joins the --auth_config file with the engine: the HTTP and gRPC servers get an engine that checks callers' rights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from service.access.callers import Callers
from service.access.guarded_engine import GuardedEngine
from service.access.sessions import Sessions
from service.configuration.start_error import StartError
from service.engine.call import Observer
from service.engine.engine import Engine
from service.engine.registry import Registry
from service.observe.reload_metrics import ReloadCounter

if TYPE_CHECKING:
    from service.access.auth_config import AuthFile

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
        """The callers of the last valid content of the --auth_config file."""
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
        """Starts a thread that reloads the --auth_config file when it changes; starts none if poll_interval_s is 0."""
        if poll_interval_s > 0:
            threading.Thread(
                target=self.file.run, args=(stop, poll_interval_s), name="auth-config", daemon=True
            ).start()


def create_access(path: str, secret_path: str, engine: Engine, metrics: Counters) -> Access | None:
    """Returns the Access of the --auth_config file: its callers, an engine that checks their rights, and the console's
    sessions; None without a file.

    Args:
      path: the --auth_config file; "": the server has no such file.
      secret_path: the --console_secret_file; "": this process keeps the sessions of the console in memory.

    Raises:
      StartError: a file can not be used.
    """
    if not path:
        if secret_path:
            raise StartError("--console_secret_file is given: only a server with --auth_config has sessions")
        return None
    # auth_config is imported here and not at the top: the TOML parser takes 5 ms of the start, and most servers
    # have no --auth_config.
    from service.access.auth_config import AuthConfigError, AuthFile

    try:
        file = AuthFile(Path(path), metrics.auth)
    except AuthConfigError as error:
        raise StartError(f"--auth_config={path}: {error}") from error
    absent = Engine(Registry(lambda model, status: None), metrics.requests, engine.clock)
    guarded = GuardedEngine(engine, absent, file.callers.current.get)
    return Access(file, guarded, _sessions(file.callers, secret_path))


def _sessions(callers: Callers, secret_path: str) -> Sessions:
    if not secret_path:
        return Sessions(callers)
    # signed_sessions is imported here and not at the top, because most servers have no --console_secret_file.
    from service.access.signed_sessions import SecretError, SignedSessions, read_secrets

    try:
        return SignedSessions(callers, read_secrets(Path(secret_path)))
    except SecretError as error:
        raise StartError(f"--console_secret_file={secret_path}: {error}") from error
