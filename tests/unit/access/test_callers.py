"""Callers, their file, and what each may do."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.access.access import (
    DEFAULT_OPEN,
    OPEN,
    RIGHT_OF,
    AuthConfigError,
    AuthFile,
    GuardedEngine,
    read_auth_config,
)
from service.access.callers import RIGHTS, Caller, Callers, Grant, Right, Rule
from service.control.engine import Engine
from service.control.request_context import Call
from service.errors import ModelNotFound, PermissionDenied, ServiceError, Unauthenticated
from service.observe.reload_metrics import ReloadCounter
from service.types import ModelRef, TableInfo
from service.versions.neighbors import Named, Nearest, NeighborQuery
from service.versions.registry import Registry
from tests.conftest import Clock, RecordingObserver
from tests.unit.versions.fakes import FakeBackend, servable

TOKEN = "a-token-of-many-letters"
DIGEST = sha256(TOKEN.encode()).hexdigest()
ENTRY = f'[[caller]]\nname = "a"\ntoken_sha256 = ["{DIGEST}"]\n'
ALLOW = '[[caller.allow]]\nmodels = ["m", "n-*"]\nrights = ["predict"]\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "auth.toml"
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another-token-from-a-file\n")
    text = (
        'open = ["metrics"]\n' + ENTRY + 'token_file = ["token"]\ncertificate = ["URI:spiffe://x/a", "CN:a"]\n' + ALLOW
    )
    config = read_auth_config(write(tmp_path, text))
    (caller,) = config.callers
    assert config.open_parts == {"metrics"}
    assert caller.name == "a" and caller.certificates == ("URI:spiffe://x/a", "CN:a")
    assert caller.digests == (sha256(TOKEN.encode()).digest(), sha256(b"another-token-from-a-file").digest())
    assert caller.rules == (Rule(("m", "n-*"), frozenset({"predict"})),)
    assert read_auth_config(write(tmp_path, ENTRY)).open_parts == DEFAULT_OPEN


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"no \[\[caller\]\]"),
        ("x", "not TOML"),
        ("caller = 3", "caller must be tables"),
        (ENTRY + "tokens = []", "not known: tokens"),
        ("users = 1\n" + ENTRY, "not known: users"),
        ('open = ["models"]\n' + ENTRY, 'got "models"'),
        ('open = "health"\n' + ENTRY, "must be a list of strings"),
        ('[[caller]]\nname = "a b"\n', "needs a name"),
        ('[[caller]]\nname = "a"\n', "could never authenticate"),
        (f'[[caller]]\nname = "a"\ntoken_sha256 = ["{TOKEN}"]\n', "64 lower-case hexadecimal"),
        (f'[[caller]]\nname = "a"\ntoken_sha256 = ["{DIGEST.upper()}"]\n', "64 lower-case hexadecimal"),
        ('[[caller]]\nname = "a"\ntoken_file = ["absent"]\n', "cannot read .*absent: No such file"),
        ('[[caller]]\nname = "a"\ntoken_file = ["short"]\n', "at least 16 bytes"),
        ('[[caller]]\nname = "a"\ntoken_file = ["two"]\n', "one token"),
        ('[[caller]]\nname = "a"\ncertificate = ["a.example"]\n', "expected URI:"),
        (ENTRY + ENTRY, 'same name: "a" and "a"'),
        (ENTRY + ENTRY.replace('"a"', '"b"'), 'same token: "a" and "b"'),
        (ENTRY + '[[caller.allow]]\nmodels = ["m"]\n', "needs models and rights"),
        (ENTRY + '[[caller.allow]]\nmodels = ["*m"]\nrights = ["predict"]\n', r'"\*m": expected a name'),
        (ENTRY + '[[caller.allow]]\nmodels = ["m"]\nrights = ["write"]\n', 'got "write"'),
        (ENTRY + '[[caller.allow]]\nmodel = ["m"]\nrights = ["predict"]\n', "not known: model"),
    ],
)
def test_what_is_wrong_is_told_and_no_token_with_it(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "short").write_text("short")
    (tmp_path / "two").write_text(f"{TOKEN}\n{TOKEN}\n")
    with pytest.raises(AuthConfigError, match=told) as caught:
        read_auth_config(write(tmp_path, text))
    assert TOKEN not in str(caught.value) and DIGEST not in str(caught.value).lower()


def test_a_file_that_is_absent(tmp_path: Path) -> None:
    with pytest.raises(AuthConfigError, match="No such file"):
        read_auth_config(tmp_path / "auth.toml")


def test_a_broken_file_keeps_the_callers_and_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counter = ReloadCounter()
    path = write(tmp_path, ENTRY + ALLOW)
    file = AuthFile(path, counter)
    caplog.set_level(logging.DEBUG)

    def rights() -> frozenset[str]:
        return file.callers.authenticate(f"Bearer {TOKEN}".encode()).rights("m")

    file.poll_once()
    assert rights() == {"predict"} and file.callers.generation == 0
    write(tmp_path, ENTRY + "[[")
    for _ in range(3):
        file.poll_once()
    assert rights() == {"predict"}
    assert [record.message for record in caplog.records] == ["auth config refused; the one before stays in force"]
    assert 'embedding_server_auth_config_reloads_total{result="refused"} 1.0' in counter.lines()
    assert "embedding_server_auth_config_is_current{} 0.0" in counter.lines()
    write(tmp_path, ENTRY + ALLOW.replace('"predict"', '"predict", "admin", "metadata"'))
    file.poll_once()
    assert rights() == set(RIGHTS)
    assert "embedding_server_auth_config_is_current{} 1.0" in counter.lines()
    assert TOKEN not in caplog.text and DIGEST not in caplog.text


def test_a_token_file_that_is_rotated_is_noticed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    file = AuthFile(write(tmp_path, '[[caller]]\nname = "a"\ntoken_file = ["token"]\n'), ReloadCounter())
    assert file.callers.authenticate(f"Bearer {TOKEN}".encode()).name == "a"
    token.write_text("the-next-token-of-this-caller")
    file.poll_once()
    assert file.callers.authenticate(b"Bearer the-next-token-of-this-caller").name == "a"
    with pytest.raises(Unauthenticated):
        file.callers.authenticate(f"Bearer {TOKEN}".encode())


def test_without_a_file_there_are_no_metrics_of_one() -> None:
    assert ReloadCounter().lines() == []


PREDICT, ALL = frozenset({"predict"}), frozenset({"predict", "metadata", "admin"})


def caller(name: str, token: str = TOKEN, *rules: Rule, certificates: tuple[str, ...] = ()) -> Caller:
    return Caller(name, rules, (sha256(token.encode()).digest(),), certificates)


@pytest.fixture
def callers() -> Callers:
    return Callers(
        [caller("a", TOKEN, certificates=("CN:a", "DNS:a.example")), caller("b", "another", certificates=("CN:b",))],
        ["health"],
    )


@pytest.mark.parametrize("value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER   {TOKEN} "])
def test_a_token_is_taken_however_the_scheme_is_written(callers: Callers, value: str) -> None:
    # The token is checked twice, because the second result comes from a cache.
    assert [callers.authenticate(value.encode()).name for _ in range(2)] == ["a", "a"]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN} {TOKEN}",
        "Bearer " + "x" * 9000,
    ],
)
def test_anything_else_is_refused_with_one_text(callers: Callers, value: str) -> None:
    texts = set()
    for authorization in (value.encode(), None):
        with pytest.raises(Unauthenticated) as caught:
            callers.authenticate(authorization)
        texts.add(caught.value.message)
    assert len(texts) == 1
    assert TOKEN not in texts.pop()


def test_the_stored_hash_is_no_token(callers: Callers) -> None:
    with pytest.raises(Unauthenticated):
        callers.authenticate(b"Bearer " + sha256(TOKEN.encode()).hexdigest().encode())


def test_a_certificate_counts_where_no_token_came(callers: Callers) -> None:
    assert callers.authenticate(None, {"CN:a", "DNS:elsewhere"}).name == "a"
    assert callers.authenticate(None, {"CN:a", "DNS:a.example"}).name == "a"
    assert callers.authenticate(b"Bearer another", {"CN:a"}).name == "b"
    for authorization, names in (
        (b"Bearer wrong", {"CN:a"}),
        (None, {"CN:a", "CN:b"}),
        (None, {"DNS:a"}),
        (b"", {"CN:a"}),
    ):
        with pytest.raises(Unauthenticated):
            callers.authenticate(authorization, names)


def test_rules_add_up_and_a_star_stands_for_any_end() -> None:
    metadata = frozenset[object]({"metadata"})
    grant = Grant(
        "a",
        [
            Rule(("m", "news-*"), PREDICT),
            Rule(("news-eu",), frozenset({"metadata"})),
            Rule(("*",), frozenset({"admin"})),
        ],
    )
    assert grant.rights("m") == {"predict", "admin"}
    assert grant.rights("news-eu") == PREDICT | metadata | {"admin"}
    assert grant.rights("new") == grant.rights("m2") == grant.everywhere == {"admin"}
    grant.require_everywhere("admin")
    with pytest.raises(PermissionDenied, match='"a" needs the right "metadata"'):
        grant.require_everywhere("metadata")


def test_no_rule_is_no_right() -> None:
    assert Grant("a").rights("m") == Grant("a").rights("*") == Grant("a").everywhere == frozenset()
    # A star that is not the whole rule is a part of a name, and no model has this name.
    assert Grant("a", [Rule(("m",), ALL)]).rights("m*") == frozenset()


def test_a_new_list_holds_from_the_next_request_on(callers: Callers) -> None:
    callers.authenticate(f"Bearer {TOKEN}".encode())
    assert callers.is_open("health") and not callers.is_open("docs")
    callers.replace([caller("b", "another", Rule(("m",), PREDICT))], ["docs"])
    assert callers.generation == 1
    assert callers.is_open("docs") and not callers.is_open("health")
    with pytest.raises(Unauthenticated):
        callers.authenticate(f"Bearer {TOKEN}".encode())
    assert callers.authenticate(b"Bearer another").rights("m") == PREDICT


def test_what_runs_for_a_caller_knows_it_and_nothing_else_does(callers: Callers) -> None:
    grant = callers.authenticate(b"Bearer another")
    assert callers.current.get() is callers.nobody
    with callers.acting(grant):
        assert callers.current.get() is grant
    assert callers.current.get() is callers.nobody
    with pytest.raises(PermissionDenied):
        callers.require_everywhere("metadata", "metrics")
    callers.require_everywhere("metadata", "health")


def test_no_secret_shows_in_what_is_printed() -> None:
    text = repr(caller("a"))
    assert TOKEN not in text and sha256(TOKEN.encode()).hexdigest()[:8] not in text and "digests" not in text


class FakeTable:
    """Row i is [i]."""

    info = TableInfo("t", 3, 1, "float32", 12, ("f",))

    def rows(self, ids: Any) -> Any:
        """Returns the ids as numbers."""
        return ids[:, None].astype(np.float32)

    def nearest(self, search: Any) -> Nearest:
        """Returns row 2 for each query."""
        return Nearest(np.full((1, 1), 2), np.ones((1, 1), np.float32))


class FakeComparisons:
    """Compares versions and finds all of them equal."""

    def of_request(self, model: str, old: int, new: int) -> dict[str, Any]:
        """Returns an empty comparison."""
        return {}

    def rows_of_request(self, model: str, table: str, old: int, new: int, ids: Any) -> tuple[Any, bool]:
        """Returns cosines of 1."""
        return np.ones(len(ids)), True


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def engine(observer: RecordingObserver, clock: Clock) -> Engine:
    """Returns an engine with version 1 of the models "m" and "secret"."""
    registry = Registry(lambda model, status: None)
    registry.add_model("secret")
    registry.add_model("m")
    registry.start("m", 1)
    registry.publish(servable(1, backend=FakeBackend(), tables={"t": FakeTable()}))
    return Engine(
        registry,
        observer,
        clock,
        reload=lambda models, deadline_s, origin: None,
        set_label=lambda model, label, version: None,
        pin=lambda model, version: None,
        compare=FakeComparisons(),
    )


def guarded(engine: Engine, observer: RecordingObserver, *rules: Rule) -> GuardedEngine:
    absent = Engine(Registry(lambda model, status: None), observer, engine.clock)
    return GuardedEngine(engine, absent, lambda: Grant("a", rules))


# Method of the engine -> the right that a caller needs on the model, and a call of the method; reload needs the right
# on all models.
CALLS: dict[str, tuple[Right, Callable[[Engine, ModelRef], Any]]] = {
    "table_rows": ("predict", lambda engine, ref: engine.table_rows(ref, "t", np.array([2]))),
    "describe": ("metadata", lambda engine, ref: engine.describe(ref)),
    "require_ready": ("metadata", lambda engine, ref: engine.require_ready(ref)),
    "neighbors": (
        "predict",
        lambda engine, ref: engine.neighbors(
            ref, "t", NeighborQuery(rows=Named(ids=np.array([1]))), Call("grpc", "Predict")
        ),
    ),
    "statuses": ("metadata", lambda engine, ref: engine.statuses(ref.name)),
    "tables": ("metadata", lambda engine, ref: engine.tables(ref)),
    "row_origin": ("predict", lambda engine, ref: engine.row_origin(ref, "t", 2)),
    "diff": ("admin", lambda engine, ref: engine.diff(ref.name, 1, 2)),
    "drift": ("predict", lambda engine, ref: engine.drift(ref.name, "t", 1, 2, np.array([2]))),
    "set_label": ("admin", lambda engine, ref: engine.set_label(ref.name, "stable", 1)),
    "pin": ("admin", lambda engine, ref: engine.pin(ref.name, 1)),
    "reload": ("admin", lambda engine, ref: engine.reload([])),
}


def test_a_stranger_is_told_by_table_rows_and_not_before(engine: Engine, observer: RecordingObserver) -> None:
    nobody = guarded(engine, observer)
    assert not nobody.may_wait(ModelRef("m"), "t")
    assert nobody.searches_by_signature(ModelRef("m"))
    with pytest.raises(ServiceError):
        nobody.table_rows(ModelRef("m"), "t", np.array([1]))


def test_every_public_method_of_the_engine_is_guarded() -> None:
    public = {name for name, _ in inspect.getmembers(Engine) if not name.startswith("_")}
    # GuardedEngine must have each public method itself, because an inherited method would check no right.
    assert public <= vars(GuardedEngine).keys()
    assert {*RIGHT_OF, *OPEN} <= public | {"searches", "clock", "tracing"}
    assert {name: right for name, (right, _) in CALLS.items() if name != "reload"}.items() <= RIGHT_OF.items()


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("method", CALLS)
def test_a_right_gives_its_methods_and_no_others(
    engine: Engine, observer: RecordingObserver, method: str, right: Right
) -> None:
    needed, call = CALLS[method]
    with_right = guarded(engine, observer, Rule(("*",), frozenset({right})))
    if right == needed:
        call(with_right, ModelRef("m"))
    else:
        with pytest.raises(PermissionDenied) as caught:
            call(with_right, ModelRef("m"))
        assert needed in caught.value.message


@pytest.mark.parametrize("method", [name for name in CALLS if name != "reload"])
@pytest.mark.parametrize("ref", [ModelRef("{}"), ModelRef("{}", 1), ModelRef("{}", None, "stable")], ids=str)
def test_a_hidden_model_is_told_from_an_absent_one_by_nothing(
    engine: Engine, observer: RecordingObserver, method: str, ref: ModelRef
) -> None:
    told = {}
    for name in ("secret", "absent"):
        observer.finished_requests.clear()
        seen = guarded(engine, observer, Rule(("m",), frozenset(RIGHTS)))
        with pytest.raises(ServiceError) as caught:
            CALLS[method][1](seen, ModelRef(name, ref.version, ref.label))
        kind = type(caught.value), caught.value.message.replace(name, "NAME")
        told[name] = kind, [{**one, "error": None} for one in observer.finished_requests]
    assert told["secret"] == told["absent"]


def test_lists_hold_what_the_caller_sees(engine: Engine, observer: RecordingObserver) -> None:
    all_seen = guarded(engine, observer, Rule(("*",), frozenset({"metadata"})))
    one_seen = guarded(engine, observer, Rule(("m",), frozenset({"metadata"})))
    none_seen = guarded(engine, observer, Rule(("m", "secret"), frozenset({"predict", "admin"})))
    for seen, names in ((all_seen, ["m", "secret"]), (one_seen, ["m"]), (none_seen, [])):
        assert seen.models() == list(seen.all_statuses()) == names
        assert list(seen.problems()) == [name for name in names if name == "secret"]
        assert not seen.is_ready


def test_reload_wants_the_right_on_all_models(engine: Engine, observer: RecordingObserver) -> None:
    with pytest.raises(PermissionDenied):
        guarded(engine, observer, Rule(("m", "secret"), frozenset(RIGHTS))).reload([])


def test_a_refused_search_is_counted_under_its_model(engine: Engine, observer: RecordingObserver) -> None:
    seen = guarded(engine, observer, Rule(("m",), frozenset({"metadata"})))
    with pytest.raises(PermissionDenied):
        CALLS["neighbors"][1](seen, ModelRef("m"))
    (counted,) = observer.finished_requests
    assert (counted["model"], counted["error"].code, counted["method"]) == ("m", "PERMISSION_DENIED", "Predict")


def test_a_model_that_does_not_exist_is_not_found_by_who_may_see_all(
    engine: Engine, observer: RecordingObserver
) -> None:
    with pytest.raises(ModelNotFound):
        guarded(engine, observer, Rule(("*",), frozenset(RIGHTS))).describe(ModelRef("absent"))
