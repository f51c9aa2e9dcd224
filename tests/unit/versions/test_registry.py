"""The registry permits only legal moves, leases keep a version across a swap, and signatures are found by name."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest

from service.errors import ArtifactError, LabelNotFound, ModelNotFound, NotReady, SignatureNotFound, VersionNotFound
from service.types import INIT_SIGNATURE, ModelRef, State, VersionStatus
from service.versions.registry import ModelRoutes, Registry
from service.versions.servable import Servable
from tests.unit.versions.fakes import FakeBackend, predict_spec, servable

LATEST = ModelRef("m")
MOVES = {
    "start": lambda registry: registry.start("m", 1),
    "publish": lambda registry: registry.publish(servable(1)),
    "fail": lambda registry: registry.fail("m", 1, ArtifactError("broken")),
    "unload": lambda registry: registry.unload("m", 1),
}


def new_registry(seen: list[tuple[str, VersionStatus]] | None = None) -> Registry:
    """Returns a registry that knows the model "m"; `seen` gets the changes of its versions."""
    registry = Registry(lambda model, status: seen.append((model, status)) if seen is not None else None)
    registry.add_model("m")
    return registry


def publish(registry: Registry, version: int, backend: FakeBackend | None = None) -> None:
    """Loads and publishes a version of model "m"."""
    registry.start("m", version)
    registry.publish(servable(version, backend=backend))


def test_a_version_goes_through_every_state_in_order() -> None:
    seen: list[tuple[str, VersionStatus]] = []
    registry = new_registry(seen)
    publish(registry, 1)
    registry.unload("m", 1)
    assert [(model, status.version, status.state.name) for model, status in seen] == [
        ("m", 1, name) for name in ("START", "LOADING", "AVAILABLE", "UNLOADING", "END")
    ]


def test_states_have_the_numbers_of_the_wire() -> None:
    assert {s.name: s.value for s in State} == {
        "UNKNOWN": 0,
        "START": 10,
        "LOADING": 20,
        "AVAILABLE": 30,
        "UNLOADING": 40,
        "END": 50,
    }


@pytest.mark.parametrize(
    ("before", "move"),
    [
        ([], "publish"),
        ([], "fail"),
        (["start"], "start"),
        (["start", "publish"], "start"),
        (["start", "publish"], "publish"),
        (["start", "publish"], "fail"),
        (["start", "fail"], "fail"),
        (["start", "fail"], "publish"),
        (["start", "publish", "unload"], "publish"),
        (["start", "publish", "unload"], "fail"),
    ],
)
def test_an_illegal_move_is_refused_and_changes_nothing(before: list[str], move: str) -> None:
    registry = new_registry()
    for name in before:
        MOVES[name](registry)
    old = registry.statuses("m") if before else []
    with pytest.raises(ValueError, match="m version 1: [A-Z]+ to [A-Z]+"):
        MOVES[move](registry)
    assert (registry.statuses("m") if before else []) == old


@pytest.mark.parametrize("ended", [["start", "fail"], ["start", "publish", "unload"]])
def test_a_version_that_ended_may_be_tried_again(ended: list[str]) -> None:
    registry = new_registry()
    for name in [*ended, "start", "publish"]:
        MOVES[name](registry)
    assert registry.statuses("m")[0] == VersionStatus(1, State.AVAILABLE)


def test_available_is_reported_after_it_can_be_leased_and_unloading_before_it_is_closed() -> None:
    backend, checks = FakeBackend(), []

    def on_transition(model: str, status: VersionStatus) -> None:
        if status.state is State.AVAILABLE:
            with registry.lease(LATEST) as held:
                checks.append(held.version)
        if status.state is State.UNLOADING:
            checks.append(backend.closed)

    registry = Registry(on_transition)
    registry.add_model("m")
    publish(registry, 1, backend)
    registry.unload("m", 1)
    assert checks == [1, 0]
    assert backend.closed == 1


def test_latest_is_the_largest_number_whatever_the_order_of_loading() -> None:
    for order in itertools.permutations([2, 9, 10]):
        registry = new_registry()
        for version in order:
            publish(registry, version)
        with registry.lease(LATEST) as held:
            assert held.version == 10


def test_what_is_not_served_is_named_as_tensorflow_serving_does() -> None:
    registry = new_registry()
    publish(registry, 1)
    with pytest.raises(ModelNotFound, match=r"^Servable not found for request: Latest\(x\)$"):
        registry.lease(ModelRef("x"))
    with pytest.raises(ModelNotFound, match=r"^Servable not found for request: Specific\(x, 9\)$"):
        registry.lease(ModelRef("x", 9))
    with pytest.raises(
        VersionNotFound, match=r"^Servable not found for request: Specific\(m, 9\); versions served: 1$"
    ):
        registry.lease(ModelRef("m", 9))
    with pytest.raises(ModelNotFound, match=r"^Could not find any versions of model x$"):
        registry.statuses("x")
    with pytest.raises(VersionNotFound, match=r"^Could not find version 9 of model m$"):
        registry.statuses("m", 9)
    with pytest.raises(VersionNotFound, match=r"^Could not find any versions of model y$"):
        registry.add_model("y")
        registry.statuses("y")


def test_a_model_without_a_version_is_not_ready_and_says_why() -> None:
    registry = new_registry()
    for expected, step in (
        ("its folder has not been read yet", lambda: None),
        ("no folder there", lambda: registry.note_problem("m", "no folder there")),
        ("version 3 is LOADING", lambda: registry.start("m", 3)),
        ("version 3 is END: broken file", lambda: registry.fail("m", 3, ArtifactError("broken file"))),
    ):
        step()
        assert registry.problem("m") == expected
        assert not registry.is_ready
        with pytest.raises(NotReady, match=f'^Model "m" is not ready: {expected}$'):
            registry.lease(LATEST)
    publish(registry, 4)
    assert registry.problem("m") == ""
    assert registry.is_ready


def test_a_failure_keeps_its_code_and_words_in_status_while_the_old_version_serves() -> None:
    registry = new_registry()
    publish(registry, 1)
    registry.start("m", 2)
    registry.fail("m", 2, ArtifactError("broken file"))
    assert registry.statuses("m") == [
        VersionStatus(2, State.END, "FAILED_PRECONDITION", "broken file"),
        VersionStatus(1, State.AVAILABLE),
    ]
    with registry.lease(LATEST) as held:
        assert held.version == 1


def test_readiness_needs_every_model_tried_and_one_available() -> None:
    told: list[bool] = []
    registry = Registry(lambda model, status: None, on_problem=lambda: told.append(registry.is_ready))
    assert not registry.is_ready, "no model is configured"
    registry.add_model("m")
    registry.add_model("other")
    registry.note_problem("m", "no folder there")
    assert not registry.is_ready, "the other model was not tried"
    registry.start("other", 1)
    registry.fail("other", 1, ArtifactError("broken file"))
    assert not registry.is_ready, "no model answers"
    publish(registry, 1)
    assert registry.is_ready
    registry.start("other", 1)
    assert registry.is_ready, "another try of a model that failed takes nothing back"
    registry.unload("m", 1)
    assert not registry.is_ready
    registry.publish(servable(1, name="other"))
    assert registry.is_ready, "a model that was lost is not waited for"
    registry.add_model("third")
    registry.start("third", 1)
    assert not registry.is_ready
    registry.note_problem("third", "no folder there")
    assert registry.is_ready
    assert told == [False, True], "whoever shows readiness hears of each problem"
    registry.drain()
    assert (registry.is_ready, registry.is_draining) == (False, True)


def test_strict_readiness_needs_every_model_and_no_drain() -> None:
    registry = Registry(lambda model, status: None, is_strict=True)
    registry.add_model("m")
    publish(registry, 1)
    registry.add_model("other")
    assert not registry.is_ready
    registry.note_problem("other", "no folder there")
    assert not registry.is_ready
    registry.start("other", 1)
    registry.publish(servable(1, name="other"))
    assert registry.is_ready
    registry.drain()
    assert not registry.is_ready
    with registry.lease(LATEST) as held:
        assert held.version == 1, "a draining server still answers"
    assert registry.models() == ["m", "other"]


def test_a_label_means_the_version_it_points_to() -> None:
    registry = new_registry()
    publish(registry, 1)
    publish(registry, 2)
    registry.configure({"m": {"stable": 1, "gone": 7}})
    with registry.lease(ModelRef("m", label="stable")) as held:
        assert held.version == 1
    assert registry.labels("m") == {"stable": 1, "gone": 7}
    with pytest.raises(
        VersionNotFound, match=r"^Servable not found for request: Specific\(m, 7\); versions served: 2, 1$"
    ):
        registry.lease(ModelRef("m", label="gone"))
    known, near = "; labels: gone, stable", r"; did you mean stable\?"
    for model, label, hint in (("m", "x", known), ("m", "", known), ("m", "stabel", near), ("nobody", "stable", "")):
        with pytest.raises(LabelNotFound, match=f"^Unrecognized servable version label: {label}{hint}$"):
            registry.lease(ModelRef(model, label=label))
    registry.configure({"m": {}})
    with pytest.raises(LabelNotFound):
        registry.lease(ModelRef("m", label="stable"))


def test_a_model_is_out_of_reach_until_it_is_configured_and_when_it_is_no_more() -> None:
    registry = new_registry()
    registry.add_model("new", is_configured=False)
    publish(registry, 1)
    registry.start("new", 1)
    registry.publish(servable(1, name="new"))
    assert registry.models() == ["m"]
    assert registry.is_available("new") and registry.is_available("new", 1) and not registry.is_available("new", 2)
    with pytest.raises(ModelNotFound, match=r"^Servable not found for request: Latest\(new\)$"):
        registry.lease(ModelRef("new"))
    registry.configure({"new": {}})
    assert registry.models() == ["new"]
    assert registry.is_ready
    with registry.lease(ModelRef("new")) as held:
        assert held.name == "new"
    with pytest.raises(ModelNotFound, match=r"^Servable not found for request: Specific\(m, 1\)$"):
        registry.lease(ModelRef("m", 1))
    assert registry.statuses("m") == [VersionStatus(1, State.AVAILABLE)], "until its thread has unloaded it"
    registry.drop(["m", "new"])
    assert registry.statuses("m"), "what has not ended is not dropped"
    registry.unload("m", 1)
    registry.drop(["m", "new"])
    with pytest.raises(ModelNotFound, match="^Could not find any versions of model m$"):
        registry.statuses("m")
    assert registry.statuses("new")


def test_a_model_that_comes_back_forgets_what_ended() -> None:
    registry = new_registry()
    publish(registry, 1)
    registry.start("m", 2)
    registry.fail("m", 2, ArtifactError("broken"))
    registry.configure({})
    registry.add_model("m", is_configured=False)
    assert registry.statuses("m") == [VersionStatus(1, State.AVAILABLE)]


def test_an_announced_version_may_start_or_be_withdrawn() -> None:
    seen: list[tuple[str, VersionStatus]] = []
    registry = new_registry(seen)
    registry.announce("m", 1)
    registry.announce("m", 1)
    registry.start("m", 1)
    registry.announce("m", 2)
    registry.withdraw("m", 2)
    assert [(status.version, status.state.name) for _, status in seen] == [
        (1, "START"),
        (1, "LOADING"),
        (2, "START"),
        (2, "END"),
    ]


def test_thousands_of_versions_change_in_one_step() -> None:
    steps: list[str] = []
    registry = Registry(lambda model, status: None, lambda models, removed: steps.append(models[0].problem))
    registry.add_model("m")
    steps.clear()
    versions = range(10_000, 0, -1)
    registry.announce("m", *versions)
    assert steps == ["version 10000 is START"]
    registry.start("m", 10_000)
    registry.fail("m", 10_000, ArtifactError("broken"))
    steps.clear()
    registry.withdraw("m", *versions[1:])
    registry.forget("m", *versions)
    assert len(steps) == 2 and registry.all_statuses("m") == []


def test_forget_drops_only_what_has_ended() -> None:
    registry = new_registry()
    publish(registry, 1)
    registry.start("m", 2)
    registry.fail("m", 2, ArtifactError("broken"))
    registry.forget("m", 1)
    registry.forget("m", 2)
    assert [s.version for s in registry.statuses("m")] == [1]


@pytest.mark.parametrize("how", ["forget", "drop", "add again"])
def test_a_failure_that_is_told_no_more_is_reported_and_an_end_without_one_is_not(how: str) -> None:
    seen: list[tuple[str, VersionStatus]] = []
    registry = new_registry(seen)
    publish(registry, 1)
    registry.unload("m", 1)
    registry.start("m", 2)
    registry.fail("m", 2, ArtifactError("broken"))
    seen.clear()
    if how == "forget":
        for version in (1, 2, 2, 3):
            registry.forget("m", version)
    else:
        registry.configure({})
        if how == "drop":
            registry.drop(["m", "nobody"])
        else:
            registry.add_model("m")
    assert seen == [("m", VersionStatus(2, State.UNKNOWN))]


def test_a_lease_pins_its_version_across_a_swap() -> None:
    registry, old = new_registry(), FakeBackend()
    publish(registry, 1, old)
    lease = registry.lease(LATEST)
    with lease as held:
        publish(registry, 2)
        with registry.lease(LATEST) as latest:
            assert latest.version == 2
        assert held.version == 1
        assert old.closed == 0


def test_unloading_waits_until_the_last_lease_is_given_back() -> None:
    unloading, unloaded = threading.Event(), threading.Event()
    backend = FakeBackend()

    def on_transition(model: str, status: VersionStatus) -> None:
        if status.state is State.UNLOADING:
            unloading.set()

    registry = Registry(on_transition)
    registry.add_model("m")
    publish(registry, 1, backend)
    leases = [registry.lease(LATEST) for _ in range(2)]

    def unload() -> None:
        registry.unload("m", 1, poll_s=0)
        unloaded.set()

    thread = threading.Thread(target=unload)
    thread.start()
    assert unloading.wait(30)
    with pytest.raises(NotReady, match="version 1 is UNLOADING"):
        registry.lease(LATEST)
    for lease in leases:
        assert not unloaded.is_set()
        assert backend.closed == 0
        lease.__exit__(None, None, None)
    thread.join(30)
    assert unloaded.is_set()
    assert backend.closed == 1
    assert registry.statuses("m") == [VersionStatus(1, State.END)]


def test_a_backend_of_several_signatures_is_closed_once() -> None:
    backend = FakeBackend()
    both = servable(1, backend=backend)
    spec = both.signatures["serving_default"]
    registry = new_registry()
    registry.start("m", 1)
    registry.publish(type(both)("m", 1, {"a": spec, "b": spec}, {"a": backend, "b": backend}))
    registry.unload("m", 1)
    assert backend.closed == 1


def test_a_version_that_can_not_be_closed_ends_and_its_other_parts_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(FakeBackend):
        def close(self) -> None:
            super().close()
            raise OSError("stale")

    first, second = Broken(), Broken()
    both = servable(1, backend=first)
    spec = both.signatures["serving_default"]
    registry = new_registry()
    registry.start("m", 1)
    registry.publish(type(both)("m", 1, {"a": spec, "b": spec}, {"a": first, "b": second}))
    registry.unload("m", 1)
    assert registry.statuses("m") == [VersionStatus(1, State.END)]
    assert (first.closed, second.closed) == (1, 1)
    assert [record.getMessage() for record in caplog.records] == ["a version could not be closed"]


def test_under_swaps_no_reader_meets_a_closed_version_or_goes_without() -> None:
    registry, versions = new_registry(), 60
    backends = {version: FakeBackend() for version in range(1, versions + 1)}
    publish(registry, 1, backends[1])
    done = threading.Event()
    faults: list[BaseException | str] = []

    def read() -> None:
        latest = 0
        try:
            while not done.is_set():
                with registry.lease(LATEST) as held:
                    if backends[held.version].closed:
                        faults.append(f"version {held.version} was closed while held")
                    if held.version < latest:
                        faults.append(f"version {held.version} after {latest}")
                    latest = held.version
        except BaseException as error:
            faults.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for version in range(2, versions + 1):
        publish(registry, version, backends[version])
        registry.unload("m", version - 1, poll_s=0)
    done.set()
    for reader in readers:
        reader.join(60)
    assert faults == []
    assert [version for version, backend in backends.items() if not backend.closed] == [versions]


def test_tells_what_can_be_leased_and_how_often_it_is() -> None:
    registry = new_registry()
    publish(registry, 10)
    publish(registry, 9)
    with registry.lease(ModelRef("m")), registry.lease(ModelRef("m", 10)):
        assert [(one.servable.version, one.num_leases) for one in registry.loaded()] == [(9, 0), (10, 2)]
    registry.unload("m", 9)
    assert [(one.servable.version, one.num_leases) for one in registry.loaded()] == [(10, 0)]


def lookups(version: int = 1) -> Servable:
    """Returns a version that is still loading, but answers lookups already."""
    return servable(version, is_loading=True)


def test_lookups_are_answered_while_the_version_loads_and_give_way_to_it() -> None:
    routes: list[Any] = []
    registry = Registry(lambda model, status: None, lambda changed, removed: routes.append(changed))
    registry.add_model("m")
    registry.start("m", 1)
    early, whole = lookups(), servable(1)
    assert registry.show_lookups(early)
    told = "version 1 is LOADING, and only its lookups are answered"
    assert routes[-1] == [ModelRoutes("m", [early], {}, told)]
    assert registry.statuses("m") == [VersionStatus(1, State.LOADING)]
    assert (registry.is_ready, registry.is_available("m"), registry.loaded()) == (False, False, [])
    for ref in (LATEST, ModelRef("m", 1)):
        with registry.lease(ref, may_load=True) as held:
            assert held is early
    # A request that needs more than lookups gets the same error as without early lookups.
    with pytest.raises(NotReady, match=f'^Model "m" is not ready: {told}$'):
        registry.lease(LATEST)
    with pytest.raises(VersionNotFound):
        registry.lease(ModelRef("m", 1))
    with pytest.raises(VersionNotFound):
        registry.lease(ModelRef("m", 2), may_load=True)
    lease = registry.lease(LATEST, may_load=True)
    registry.publish(whole)
    assert routes[-1] == [ModelRoutes("m", [whole], {})]
    with registry.lease(LATEST, may_load=True) as held:
        assert held is whole
    # The unload of a version waits for requests that still hold its early lookups.
    ended = threading.Thread(target=registry.unload, args=("m", 1))
    ended.start()
    ended.join(0.05)
    assert ended.is_alive()
    lease.__exit__(None, None, None)
    ended.join()


def test_lookups_are_not_answered_beside_a_version_that_is_available_or_before_a_load() -> None:
    registry = new_registry()
    assert not registry.show_lookups(lookups())
    publish(registry, 1)
    registry.start("m", 2)
    assert not registry.show_lookups(lookups(2))
    with registry.lease(LATEST, may_load=True) as held:
        assert held.version == 1
    registry.fail("m", 2, ArtifactError("broken"))
    registry.unload("m", 1)
    # Lookups of version 2 are not published after its load has failed.
    assert not registry.show_lookups(lookups(2))
    assert not registry.show_lookups(servable(1, "unknown"))


def test_a_load_that_fails_takes_its_lookups_along_for_good() -> None:
    seen: list[tuple[str, VersionStatus]] = []
    registry = new_registry(seen)
    registry.start("m", 1)
    assert registry.show_lookups(lookups())
    lease = registry.lease(LATEST, may_load=True)
    failing = threading.Thread(target=registry.fail, args=("m", 1, ArtifactError("no tower")))
    failing.start()
    while registry.shows_lookups("m"):
        time.sleep(0.001)
    with pytest.raises(NotReady):
        registry.lease(LATEST, may_load=True)
    # The end of a version removes its counts, so a request must not count after END: the version stays LOADING until
    # the lease is given back.
    assert seen[-1][1].state is State.LOADING
    lease.__exit__(None, None, None)
    failing.join()
    assert seen[-1] == ("m", VersionStatus(1, State.END, "FAILED_PRECONDITION", "no tower"))
    registry.start("m", 1)
    assert not registry.show_lookups(lookups()), "they would come and go with each attempt"
    registry.fail("m", 1, ArtifactError("no tower"))
    registry.start("m", 2)
    assert registry.show_lookups(lookups(2)), "another version has not failed yet"
    registry.publish(servable(2))
    registry.forget("m", 1)
    registry.unload("m", 2)
    registry.start("m", 1)
    assert registry.show_lookups(lookups()), "its folder was gone, so it is another one"


def test_no_name_means_serving_default() -> None:
    assert servable().signature("").name == "serving_default"


@pytest.mark.parametrize(("asked", "named"), [("x", "x"), ("", "serving_default")])
def test_an_unknown_signature_is_named_in_tensorflow_serving_s_words_and_all_others_after_them(
    asked: str, named: str
) -> None:
    spec = predict_spec("lookup")
    with pytest.raises(SignatureNotFound, match=rf'^Serving signature key "{named}" not found\. Signatures: lookup$'):
        Servable("m", 1, {"lookup": spec}, {}).signature(asked)


def test_a_misspelt_signature_is_told_the_nearest_name() -> None:
    with pytest.raises(SignatureNotFound, match=r'^Serving signature key "lokup" not found; did you mean lookup\?$'):
        Servable("m", 1, {"lookup": predict_spec("lookup")}, {}).signature("lokup")


def test_the_signature_that_initializes_the_graph_is_not_suggested() -> None:
    one = Servable("m", 1, {INIT_SIGNATURE: predict_spec(INIT_SIGNATURE)}, {})
    with pytest.raises(SignatureNotFound, match=r'^Serving signature key "__saved_model_init" not found\.$'):
        one.signature("__saved_model_init")
