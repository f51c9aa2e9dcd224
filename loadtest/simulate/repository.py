"""Drives the real list of models, watchers, registry and pruning of journals through any order of events, from a seed.

Versions come and go, half-copied, replaced, damaged or not loadable, under any policy, while the list of models is
reloaded and labels move. Only the clock, the loader and the thread that polls are simulated.

What holds after each step, whatever came before:

- A version that worked is served until another one of its model is, or until it is damaged, its model leaves the list,
  or no version that the policy wants is there.
- What is unloaded is closed, once; what is served is not.
- Status says AVAILABLE of exactly the versions that answer. A version that is not loading is in no state between.
- A reload that is refused changes neither the list nor the labels.
- The journal of a version that is served, or that has a folder, stays.

Once nothing changes any more, all good versions that the policy wants are served, and no others beside them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from service.artifact.delta_journal import journal_path
from service.deltas.rules import GONE_S, JournalPruning
from service.errors import ArtifactError, NotReady, ServiceError
from service.types import ModelRef, State, VersionStatus
from service.versions.loads import LoadRules
from service.versions.model_config import All, Latest, ModelConfig, Specific, VersionPolicy, wanted_versions
from service.versions.model_set import ModelSet
from service.versions.registry import Registry
from service.versions.repository import ModelWatcher
from service.versions.servable import Servable

# Repositories of one seed.
EXAMPLES = 10
_MODELS = ("a", "b")
_SETTLE_S, _RETRY_S, _MAX_RETRIES = 10.0, 60.0, 1
# Longest wait of anything that the repository does by itself: all is done after some polls that far apart.
_LONG_S = 2 * GONE_S
_models = st.sampled_from(_MODELS)
_versions = st.integers(1, 4)
_policies = st.one_of(
    st.integers(1, 3).map(Latest), st.just(All()), st.frozensets(_versions, min_size=1, max_size=2).map(Specific)
)


class _Files:
    """The files of a loaded version; a rule says that they are damaged."""

    is_verified = is_verification_due = False

    def __init__(self, content: str) -> None:
        self.content = content
        self.damage = ""
        self.num_closed = 0

    @property
    def is_damaged(self) -> bool:
        """Says whether they are."""
        return bool(self.damage)

    def look(self) -> str:
        """Returns the damage."""
        return self.damage

    def close(self) -> None:
        """Counts the call."""
        self.num_closed += 1


class _Polls:
    """Stands for the Poller's thread: a model has its turn when the machine polls it, or when it is added."""

    def __init__(self) -> None:
        self.watchers: dict[str, tuple[ModelWatcher, Callable[[], None]]] = {}

    def add(self, watcher: ModelWatcher, on_end: Callable[[], None]) -> None:
        """Polls a new model at once."""
        self.watchers[watcher.name] = watcher, on_end
        self.turn(watcher.name)

    def wake(self, name: str) -> None:
        """Leaves the turn to the machine's next poll."""

    def turn(self, name: str) -> None:
        """Does what a turn of the Poller does."""
        if (found := self.watchers.get(name)) is None:
            return
        watcher, on_end = found
        watcher.act(watcher.scan())
        if watcher.end_if_over():
            on_end()
            del self.watchers[name]

    def wait_until_ended(self, names: Iterable[str], timeout_s: float) -> None:
        """Gives each model a turn."""
        for name in names:
            self.turn(name)


class Repository(RuleBasedStateMachine):
    """The machine of hypothesis: its rules are events, its invariants the promises."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(prefix="simulate-", dir=memory if memory.is_dir() else None))
        self.journals = self.root / "journals"
        self.now_s = 1000.0
        self.number = 0
        self.files: list[tuple[str, int, _Files]] = []
        self.broken = ""
        self.registry = Registry(self._moved)
        pruning = JournalPruning(self.journals, clock=lambda: self.now_s)
        rules = LoadRules(
            self._load,
            _MAX_RETRIES,
            _RETRY_S,
            settle_s=_SETTLE_S,
            clock=lambda: self.now_s,
            wall_clock=lambda: 0.0,
            on_look=pruning.looked,
        )
        self.models = ModelSet(self.registry, rules, poll_interval_s=1.0, reload_timeout_s=0.0)
        self.polls: Any = _Polls()
        self.models._poller = self.polls
        for name in _MODELS:
            (self.root / name).mkdir()
        self.models.start([self._config("a", Latest())])
        self.version_arrives("a", 1, "good", is_awaited=True)

    def teardown(self) -> None:
        """Lets all come to rest, looks at it once more, and removes the files."""
        try:
            for name in _MODELS:
                if (hidden := self.root / f"{name}.away").exists():
                    hidden.rename(self.root / name)
            for _ in range(4):
                self.time_passes(_LONG_S)
            self._check_rest()
        finally:
            shutil.rmtree(self.root)

    def _config(self, name: str, policy: VersionPolicy, labels: dict[str, int] | None = None) -> ModelConfig:
        return ModelConfig(name, str(self.root / name), policy, labels or {})

    def _folder(self, model: str, version: int) -> Path:
        base = self.root / model
        return (base if base.exists() else self.root / f"{model}.away") / str(version)

    def _load(self, model: str, version: int, path: Path) -> Servable:
        content = (path / "saved_model.pb").read_text()
        if not content.startswith("good"):
            raise ArtifactError(f"it is {content}")
        files = _Files(content)
        self.files.append((model, version, files))
        journal = journal_path(self.journals, model, version, b"f" * 32)
        journal.parent.mkdir(parents=True, exist_ok=True)
        journal.touch()
        return Servable(model, version, {}, {}, files=files)

    def _moved(self, model: str, status: VersionStatus) -> None:
        if status.state is State.UNLOADING and not self.registry.is_available(model):
            files = [files for name, version, files in self.files if (name, version) == (model, status.version)][-1]
            config = {one.name: one for one in self.models.configs}.get(model)
            there = self._there(model)
            if not files.damage and config is not None and wanted_versions(config.policy, there):
                self.broken = f"{model} {status.version} is unloaded, and nothing answers in its place: {config}"

    def _there(self, model: str) -> list[int]:
        base = self.root / model
        return [int(path.name) for path in base.iterdir()] if base.exists() else []

    @rule(
        model=_models,
        version=_versions,
        kind=st.sampled_from(("good", "good", "good", "bad")),
        is_awaited=st.booleans(),
    )
    def version_arrives(self, model: str, version: int, kind: str, is_awaited: bool) -> None:
        """Gives a whole folder its name, in place of the one that is there."""
        self.number += 1
        made = self.root / "made"
        made.mkdir()
        (made / "saved_model.pb").write_text(f"{kind} {self.number}")
        folder = self._folder(model, version)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
        for _ in range(2 * is_awaited):
            self.time_passes(_SETTLE_S)

    @rule(model=_models, version=_versions)
    def copy_begins(self, model: str, version: int) -> None:
        """Writes a part of a folder in its place."""
        self.number += 1
        folder = self._folder(model, version)
        folder.mkdir(exist_ok=True)
        (folder / "saved_model.pb").write_text(f"half {self.number}")

    @rule(model=_models, version=_versions)
    def version_goes(self, model: str, version: int) -> None:
        """Removes a folder."""
        shutil.rmtree(self._folder(model, version), ignore_errors=True)

    @rule(model=_models)
    def mount_goes_or_comes(self, model: str) -> None:
        """Hides the model's folder, or brings it back."""
        here, away = self.root / model, self.root / f"{model}.away"
        (here.rename(away) if here.exists() else away.rename(here))

    @precondition(lambda self: self.registry.loaded())
    @rule(data=st.data())
    def files_are_damaged(self, data: st.DataObject) -> None:
        """Changes a served version's files under their map."""
        loaded = self.registry.loaded()
        one = loaded[data.draw(st.integers(0, len(loaded) - 1))].servable
        assert isinstance(one.files, _Files)
        one.files.damage = "its bytes changed"

    @rule(model=_models)
    def model_is_polled(self, model: str) -> None:
        """Gives a model a turn."""
        self.polls.turn(model)

    @rule(seconds=st.sampled_from((1.0, _SETTLE_S, _RETRY_S, GONE_S)))
    def time_passes(self, seconds: float) -> None:
        """Moves the clock on, and gives all models a turn."""
        self.now_s += seconds
        for model in _MODELS:
            self.polls.turn(model)

    @rule(names=st.sets(_models, min_size=1), policy=_policies, label=st.sampled_from((None, None, 1, 2, 4)))
    def list_is_reloaded(self, names: Collection[str], policy: VersionPolicy, label: int | None) -> None:
        """Sends a list of models, with a label of the first one."""
        before = self.models.configs, {name: dict(self.registry.labels(name)) for name in _MODELS}
        configs = [
            self._config(name, policy, {} if label is None or number else {"stable": label})
            for number, name in enumerate(sorted(names))
        ]
        try:
            self.models.reload(configs)
        except ServiceError:
            now = self.models.configs, {name: dict(self.registry.labels(name)) for name in _MODELS}
            assert now == before, f"a refused reload changed the list from {before} to {now}"
            return
        assert self.models.configs == tuple(configs)
        if label is not None:
            with self.registry.lease(ModelRef(configs[0].name, label="stable")) as held:
                assert held.version == label, "a label was taken for a version that does not answer"

    @invariant()
    def a_version_answers_until_another_does(self) -> None:
        """Checks what each unload left."""
        assert not self.broken, self.broken

    @invariant()
    def what_is_unloaded_is_closed(self) -> None:
        """Checks that memory goes with the version, and not before."""
        served = {id(one.servable.files) for one in self.registry.loaded()}
        for model, version, files in self.files:
            expected = 0 if id(files) in served else 1
            assert files.num_closed == expected, f"{model} {version} was closed {files.num_closed} times"

    @invariant()
    def status_tells_what_answers(self) -> None:
        """Checks that AVAILABLE is what a request gets, and that nothing is left between two states."""
        for model in _MODELS:
            statuses = {one.version: one for one in self.registry.all_statuses(model)}
            told = {version for version, one in statuses.items() if one.state is State.AVAILABLE}
            between = {version for version, one in statuses.items() if one.state in (State.LOADING, State.UNLOADING)}
            assert not between, f"{model}: {between} are left between two states"
            loaded = {one.servable.version for one in self.registry.loaded() if one.servable.name == model}
            assert told == loaded, f"{model}: status tells of {told}, and {loaded} are loaded"
            if model not in self.registry.models():
                continue
            for version in told:
                with self.registry.lease(ModelRef(model, version)) as held:
                    assert held.version == version
            try:
                with self.registry.lease(ModelRef(model)) as held:
                    assert held.version == max(told), f"{model} answers with {held.version} of {told}"
            except NotReady:
                assert not told, f"{model} does not answer, and status tells of {told}"

    @invariant()
    def journals_of_versions_stay(self) -> None:
        """Checks that a journal goes only after its version."""
        for one in self.registry.loaded():
            path = journal_path(self.journals, one.servable.name, one.servable.version, b"f" * 32)
            assert path.exists(), f"the journal {path.name} of a served version of {one.servable.name} is gone"

    def _check_rest(self) -> None:
        held = {(name, version): files for name, version, files in self.files}
        for config in self.models.configs:
            contents = {
                version: (self._folder(config.name, version) / "saved_model.pb").read_text()
                for version in self._there(config.name)
            }
            # A version that was damaged is loaded again when its folder changes, and only then.
            whole = {
                version
                for version, content in contents.items()
                if (files := held.get((config.name, version))) is None or not files.damage or files.content != content
            }
            wanted = wanted_versions(config.policy, whole)
            served = {one.servable.version for one in self.registry.loaded() if one.servable.name == config.name}
            for version in wanted:
                if contents[version].startswith("good"):
                    assert version in served, f"{config.name}: {version} is good, and not served ({served})"
            if served & set(wanted):
                assert served <= set(wanted), f"{config.name}: {served} are served, {wanted} are wanted"


def run_seed(seed: int, *, is_shortened: bool = False) -> str:
    """Runs EXAMPLES repositories of up to 60 steps that hypothesis draws from a seed; returns what is broken, "" if
    nothing is.

    Args:
      is_shortened: the text of a failure has the shortest way to it that hypothesis finds, which takes a while.
    """
    rules = settings(
        max_examples=EXAMPLES,
        stateful_step_count=60,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if is_shortened else (Phase.generate,),
    )

    class Seeded(Repository):
        pass

    try:
        run_state_machine_as_test(hypothesis.seed(seed)(Seeded), settings=rules)
    except Exception as error:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    return ""
