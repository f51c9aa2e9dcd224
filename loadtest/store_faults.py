"""Breaks an object store in more than twenty ways under a server, and prints what the server says of each fault.

  python -m loadtest.store_faults                 all faults, as a table
  python -m loadtest.store_faults --without_slow  without those that wait for a timeout

The store is moto's S3 server. A proxy between the server and the store breaks the answers. Some faults break the store
itself: a removed bucket, half an upload, denied credentials, a killed process. One server has a model for
each fault, at version 1. Then version 2 is uploaded and the fault begins; the server must say so, go on to answer from
version 1, and serve version 2 once the fault has ended. A reader asks every model all the time.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from loadtest.live_server import header, row
from loadtest.operator_view import OperatorView
from loadtest.steady_load import SteadyLoad
from tests.integration.process import ServerProcess, write_models
from tests.integration.s3_server import BUCKET, S3Server
from tests.integration.store_proxy import Fault, StoreProxy
from tests.toy_model import rewrite_manifest, write_toy_model

_SHARD = "variables/variables.data-00000-of-00001"
_MANIFEST = "assets.extra/lookup_manifest.json"
_CACHE_MIB = 48
_LARGE_BYTES = 64 << 20
_POLL_S = 1
_PATIENCE_S = 60
_SHOWN_CHARACTERS = 160
_NO_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
_PAGE = b"<html>hello</html>"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class Row:
    """A row of the report about one fault: states of store and version, the server's text, and how the fault ended.

    seen: what an operator saw within ten seconds.
    """

    fault: str
    store: str = ""
    version: str = ""
    text: str = ""
    seen: str = ""
    old_version: str = ""
    afterwards: str = ""
    is_expected: bool = False


@dataclass(frozen=True)
class StoreFault:
    """One fault of the object store, which hits the versions of one model.

    about: the fault's name in the table. expects: pattern of the server's text. state: the version's state during it.
    on: object (the end of its path) whose answers the fault breaks, "list" for listings; None if it breaks no answers.
    fault: the broken answer. missing: an object that is uploaded only after the fault has ended.
    wrong: object -> bytes, which is uploaded instead of the right bytes. base_path: if it is another than the model's.
    """

    name: str
    about: str
    expects: str
    state: str = "FAILED"
    on: str | None = None
    fault: Fault = field(default_factory=Fault)
    missing: str = ""
    wrong: Mapping[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    base_path: str = ""
    is_slow: bool = False


def _listing(name: str, about: str, expects: str, **fault: Any) -> StoreFault:
    return StoreFault(name, about, expects, "", "list", Fault(**fault))


def _reading(name: str, about: str, expects: str, on: str = _SHARD, **fault: Any) -> StoreFault:
    return StoreFault(name, about, expects, on=on, fault=Fault(**fault), is_slow="held" in fault)


def _upload(name: str, about: str, expects: str, **more: Any) -> StoreFault:
    return StoreFault(name, about, expects, "INCOMPLETE", **more)


def faults() -> list[StoreFault]:
    """Returns the faults that hit single models, so that one server can have a model for each fault at once."""
    unreadable, vanished = r"the store can not be read: ", "is removed between listing and read"
    nobody, none = {"state": "", "base_path": "s3://nobody/toy"}, {"state": "", "base_path": f"s3://{BUCKET}/none"}
    half = {_SHARD: lambda data: data[: len(data) // 2]}
    return [
        StoreFault("no_bucket", "the bucket does not exist", "there is no such bucket", **nobody),
        StoreFault("empty", "the place in the bucket is empty", "no version folder", **none),
        _listing("gone", "the bucket is removed", "there is no such bucket", status=404, body=_NO_BUCKET),
        _listing("no_list", "no right to list", "the store denies access", status=403),
        _listing("slow_list", "listings are throttled (503)", f"{unreadable}.*503", status=503, body=_SLOW_DOWN),
        _listing("html_list", "a listing is a web page", "lists no versions any more", status=200, body=_PAGE),
        _listing("cut_list", "listings are cut before their head", unreadable, cut_after=-1),
        _reading("no_read", "no right to read objects", "the store denies access", status=403),
        _reading("throttled", "reads are throttled (503)", f"{unreadable}.*503", status=503, body=_SLOW_DOWN),
        _reading("broken", "the store is broken (500)", f"{unreadable}.*500", status=500),
        _reading("cut", "connections are cut within an object", unreadable, cut_after=10),
        _reading("closed", "connections are cut before the head", unreadable, cut_after=-1),
        _reading("short", "an answer is shorter than was asked", "the store", drops=7),
        _reading("vanished", f"an object {vanished}", "not there any more", status=404),
        _reading("replaced", "an object is replaced between listing and read", "changed while it was read", status=412),
        _reading("flipped", "a byte of a table is wrong", "do not have their checksum", flips_last=True),
        _reading("manifest", "the manifest is no JSON", "manifest", _MANIFEST, flips_last=True),
        _upload("half", "half an upload: an object is missing", "is not there yet", missing=_SHARD),
        _upload("torn", "a torn upload: half of an object", "the manifest lists", wrong=half),
        _upload("unmarked", "an upload without its marker yet", "is not there yet", missing="saved_model.pb"),
        StoreFault("large", "a version larger than --store_cache_mib", r"are left: it may have 48\.0 MiB"),
        _reading("silent", "the store takes a request and never answers", unreadable, held=threading.Event()),
    ]


class Broken:
    """The object store with its faults: uploads versions, and decides which answers the proxy breaks."""

    def __init__(self, s3: S3Server, folder: Path, chosen: Sequence[StoreFault]) -> None:
        self._s3 = s3
        self._folder = folder
        self._active: dict[str, StoreFault] = {}
        self._chosen = chosen
        for scale in (1, 2):
            write_toy_model(folder / str(scale), scale=scale)

    def upload(self, name: str, scale: int, *, fault: StoreFault | None = None) -> None:
        """Uploads a version; leaves out the object that the fault says is missing, and uploads its wrong bytes."""
        made = self._folder / str(scale)
        if fault is not None and fault.name == "large":
            made = self._folder / "large"
            write_toy_model(made, scale=scale)
            (made / "assets").mkdir(exist_ok=True)
            (made / "assets" / "filler").write_bytes(bytes(_LARGE_BYTES))
            rewrite_manifest(made, lambda manifest: manifest["files"].update({"assets/filler": _LARGE_BYTES}))
        for path in sorted(made.rglob("*")):
            key = path.relative_to(made).as_posix()
            if path.is_file() and not (fault and fault.missing == key):
                data = path.read_bytes()
                data = fault.wrong[key](data) if fault and key in fault.wrong else data
                self._s3.put(f"{name}/{scale}/{key}", data)

    def begin(self) -> None:
        """Begins all chosen faults, and uploads version 2 of each model as its fault leaves it."""
        self._active = {fault.name: fault for fault in self._chosen if fault.on}
        for fault in self._chosen:
            if not fault.base_path:
                self.upload(fault.name, 2, fault=fault)

    def end(self) -> None:
        """Ends all faults, and uploads what was missing or wrong in version 2 of each model."""
        for fault in self._active.values():
            if fault.fault.held is not None:
                fault.fault.held.set()
        self._active = {}
        for fault in self._chosen:
            if fault.missing or fault.wrong:
                self.upload(fault.name, 2)
            elif fault.name == "large":
                self._s3.delete(f"{fault.name}/2/assets/filler")
                self.upload(fault.name, 2)

    def rule(self, method: str, path: str, query: Mapping[str, Sequence[str]]) -> Fault | None:
        """Returns the fault that hits a model's listing or an object of its version 2; None if no fault hits it."""
        prefix = query.get("prefix", [""])[0]
        if "list-type" in query:
            fault = self._active.get(prefix.partition("/")[0])
            return fault.fault if fault is not None and fault.on == "list" else None
        name, _, rest = path.removeprefix(f"/{BUCKET}/").partition("/")
        fault = self._active.get(name)
        return fault.fault if fault is not None and rest == f"2/{fault.on}" else None


class Reader(SteadyLoad):
    """A thread that asks models for a row all the time; counts requests and answers that are wrong or errors."""

    def __init__(self, server: ServerProcess, models: Sequence[str]) -> None:
        self.requests = dict.fromkeys(models, 0)
        self.failed = dict.fromkeys(models, 0)
        self._url = str(server.http.base_url)
        super().__init__(self._read)

    def _read(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self.is_over.wait(0.02):
                for model in self.requests:
                    answer = client.post(f"/v1/models/{model}:lookup", json={"features": {"user": [1]}})
                    self.requests[model] += 1
                    if answer.status_code != 200 or answer.json()["embeddings"]["user"] not in ([[1, 10]], [[2, 20]]):
                        self.failed[model] += 1


@contextmanager
def running(folder: Path, models: Mapping[str, str], **settings: object) -> Iterator[ServerProcess]:
    """Runs a server with models by name and base path, and a cache folder of its own unless settings name one."""
    given: dict[str, object] = {"model_config_file": write_models(folder, models), "store_cache_dir": folder / "cache"}
    given |= {"store_poll_wait_seconds": _POLL_S, "first_loads_timeout_s": 1, "max_num_load_retries": 1000}
    given |= {"store_cache_mib": _CACHE_MIB, "version_settle_s": 2, "graph_signatures": "off"}
    with ServerProcess(**(given | settings)) as server:
        yield server.answering()


def seeing(server: ServerProcess, models: Iterable[str]) -> OperatorView:
    return OperatorView(str(server.http.base_url), server.records, models)


def seen(server: ServerProcess, model: str) -> tuple[str, str, str]:
    (store,) = [one for one in server.http.get("/v1/statusz").json()["stores"] if one["model"] == model]
    newest: Mapping[str, Any] = store["versions"][0] if store["versions"] else {"state": "", "message": ""}
    listed = server.http.get(f"/v1/models/{model}").json().get("model_version_status", [])
    ends = [one["state"] + " " + one["status"]["error_code"] for one in listed if one["status"]["error_code"] != "OK"]
    state = f"{newest['state']}, {ends[0]}" if ends else newest["state"]
    problems = server.http.get("/readyz").json()["problems"]
    text = store["problem"] or newest["message"] or problems.get(model, "")
    return ("not listed" if store["problem"] else "listed"), state, text


def serves(server: ServerProcess, model: str, scale: int) -> bool:
    return server.tells({"user": [1]}, {"user": [[scale, 10 * scale]]}, model=model)


def are_ready(server: ServerProcess, models: Sequence[str]) -> bool:
    """Says whether all models answer with version 1, and none has a problem."""
    problems = server.http.get("/readyz").json()["problems"]
    return all(name not in problems and serves(server, name, 1) for name in models)


def wait(is_so: Callable[[], bool]) -> bool:
    """Waits until a callable returns true; returns False if that takes longer than a minute."""
    end_s = time.monotonic() + _PATIENCE_S
    while not (found := is_so()) and time.monotonic() < end_s:
        time.sleep(0.05)
    return found


def watched(server: ServerProcess, model: str, about: str, expects: str, state: str = "") -> Row:
    """Waits until the status page shows a model's expected state and text; the row has what it showed last."""
    found = Row(about)

    def is_seen() -> bool:
        found.store, found.version, found.text = seen(server, model)
        return bool(re.search(expects, found.text)) and found.version.startswith(state) and bool(found.text or state)

    found.is_expected = wait(is_seen)
    sys.stderr.write(f"{about}: {found.store}, {found.version}, {found.text}\n")
    return found


def judge_old(rows: Mapping[str, Row], reader: Reader) -> None:
    """Writes into each report row how many of the reader's requests version 1 answered; a failure is unexpected."""
    for model, failed in reader.failed.items():
        rows[model].old_version = f"{reader.requests[model] - failed} of {reader.requests[model]}"
        rows[model].is_expected &= not failed and reader.requests[model] > 0


def break_each(s3: S3Server, proxy: StoreProxy, folder: Path, chosen: Sequence[StoreFault]) -> list[Row]:
    """Breaks all models' stores at the same time, each by its own fault, then repairs them; returns table rows."""
    store = Broken(s3, folder, chosen)
    kept = [fault.name for fault in chosen if not fault.base_path]
    for name in kept:
        store.upload(name, 1)
    proxy.rule = store.rule
    with running(folder, {fault.name: fault.base_path or f"s3://{BUCKET}/{fault.name}" for fault in chosen}) as server:
        assert wait(lambda: are_ready(server, kept)), "version 1 is not served"
        with Reader(server, kept) as reader:
            with seeing(server, [fault.name for fault in chosen]) as view:
                store.begin()
                rows = {
                    fault.name: watched(server, fault.name, fault.about, fault.expects, fault.state) for fault in chosen
                }
                view.wait()
        judge_old(rows, reader)
        for name, one in rows.items():
            one.seen = view.told_of(name)
        store.end()
        for name in kept:
            is_served = wait(lambda name=name: serves(server, name, 2))  # type: ignore[misc]
            rows[name].afterwards = "version 2" if is_served else "NOT SERVED"
            rows[name].is_expected &= is_served
    return list(rows.values())


def break_all(s3: S3Server, proxy: StoreProxy, folder: Path) -> list[Row]:
    """Denies credentials and kills the store, under a running server and before servers start; returns table rows."""
    folder.mkdir()
    Broken(s3, folder, ()).upload("toy", 1)
    proxy.rule = None
    models = {"toy": f"s3://{BUCKET}/toy"}
    rows = []
    with running(folder, models) as server:
        assert wait(lambda: are_ready(server, ["toy"])), "version 1 is not served"
        for about, expects, fail in (
            ("the credentials are revoked", "the store denies access", s3.deny),
            ("the store's process is killed", "the store can not be read", s3.kill),
        ):
            with seeing(server, ["toy"]) as view, Reader(server, ["toy"]) as reader:
                fail()
                rows.append(watched(server, "toy", about, expects))
                view.wait()
            judge_old({"toy": rows[-1]}, reader)
            rows[-1].seen = view.told_of("toy")
            if fail == s3.deny:
                rows.append(_of_a_start(folder / "denied", models, "wrong credentials at the start", expects))
    rows.append(_of_a_start(folder, models, "a restart while the store is down", "the store can not be read"))
    with running(folder, models) as server:
        is_served = wait(lambda: serves(server, "toy", 1))
        rows[-1].old_version = "from the cache" if is_served else "NOT SERVED"
        rows[-1].is_expected &= is_served
    rows.append(
        _of_a_start(folder / "off", models, "a first start while the store is down", "the store can not be read")
    )
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    keys = {name: os.environ.pop(name) for name in names}
    # The object store's client then finds no credential service of a cloud: nothing listens at this address.
    os.environ["AWS_METADATA_ENDPOINT"] = "http://127.0.0.1:1"
    rows.append(_of_a_start(folder / "none", models, "no credentials at the start", "the store can not be read"))
    os.environ.update(keys)
    s3.start()
    return rows


def _of_a_start(folder: Path, models: Mapping[str, str], about: str, expects: str) -> Row:
    folder.mkdir(exist_ok=True)
    with running(folder, models) as server, seeing(server, ["toy"]) as view:
        found = watched(server, "toy", about, expects)
        view.wait()
        found.seen = view.told_of("toy")
        return found


def printed(rows: Sequence[Row]) -> str:
    """Returns rows as a table in Markdown; a row that is not as expected begins with an exclamation mark."""
    told = ("fault", "store", "version 2", "text", "an operator saw", "version 1 answered", "afterwards")
    lines = [header("#", *told)]
    for number, one in enumerate(rows, 1):
        text = one.text.replace("|", "/")
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        cells = (one.fault, one.store, one.version, shown, one.seen, one.old_version, one.afterwards)
        lines.append(row(f"{'' if one.is_expected else '! '}{number}", *cells))
    return "\n".join(lines) + "\n"


def run(folder: Path, chosen: Sequence[StoreFault]) -> list[Row]:
    """Runs the chosen faults, then the faults that hit the whole store; returns a table row for each fault."""
    s3 = S3Server()
    proxy = StoreProxy(s3.port)
    before = dict(os.environ)
    try:
        os.environ.update(s3.variables(proxy.url))
        return break_each(s3, proxy, folder, chosen) + break_all(s3, proxy, folder / "whole")
    finally:
        os.environ.clear()
        os.environ.update(before)
        proxy.close()
        s3.kill()


def main() -> int:
    """Prints the table of all faults; returns 1 if the server behaved unexpectedly under at least one fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without_slow", action="store_true", help="leave out faults that wait for a timeout")
    arguments = parser.parse_args()
    chosen = [fault for fault in faults() if not (arguments.without_slow and fault.is_slow)]
    with tempfile.TemporaryDirectory() as folder:
        rows = run(Path(folder), chosen)
    sys.stdout.write(printed(rows))
    return 0 if all(one.is_expected and one.seen for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
