"""Freezes the answers of a server, and compares those of another one with them; exits with 1 if an answer differs.

    python -m loadtest.replay record --server-from 4c1faef7 --out ../corpus     20,000 requests, and hand-written ones
    python -m loadtest.replay record --server-from . --out ../batched -- --enable_batching
    python -m loadtest.replay replay --corpus ../corpus                         this checkout's server
    python -m loadtest.replay replay --corpus ../corpus -- --threads=1
    python -m loadtest.replay replay --corpus ../corpus --forms lookup --only 'random 17'

`record` sends each request to two processes of the server, so that it knows which parts of an answer vary by chance.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.live_server import ROOT, LiveServer, export_demo, say
from loadtest.model_samples import ask
from loadtest.replay.comparing import Difference, Intended, differences, read_intended, without_nan_signs
from loadtest.replay.drawing import Drawing, written
from loadtest.replay.requests import FORMS, OTHER, Exchanges, Request, Stored
from tests.conformance.contract_models import write_half, write_kinds
from tests.integration.process import write_models
from tests.mixed_model import write_mixed_model
from tests.tower_zoo import write_zoo_model
from tests.toy_described import write_described_model
from tests.toy_model import write_toy_model
from tests.toy_policies import write_policy_model
from tests.toy_sums import write_sums_model

# Files of a corpus, which lies outside git: what it was recorded from, and a file of lines for each form.
_ABOUT, _LINES = "about.json", ".jsonl.gz"
# Small limits, so that a request of 256 KB is too large, and small answers are compressed.
_FLAGS = (
    *("--max_request_bytes=131072", "--rest_api_gzip_min_bytes=64"),
    *("--file_system_poll_wait_seconds=0", "--version_settle_s=0", "--allow_version_labels_for_unavailable_models"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one of the two commands; returns 1 if an answer differs."""
    options = _parser().parse_args(arguments)
    return _record(options) if options.command == "record" else _replay(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="write a corpus")
    record.add_argument("--server-from", required=True, help="a commit, which is built, or the folder of a checkout")
    record.add_argument("--out", type=Path, required=True, help="the corpus; models that are there stay")
    record.add_argument("--requests", type=int, default=20_000, help="random ones in all (default: %(default)s)")
    record.add_argument("--seed", type=int, default=1)
    record.add_argument("--models", default=",".join(MODELS), help="which, comma-separated (default: %(default)s)")
    replay = commands.add_parser("replay", help="compare a server with a corpus")
    replay.add_argument("--corpus", type=Path, required=True)
    replay.add_argument("--server", type=Path, default=ROOT, help="the folder of a checkout (default: this one)")
    replay.add_argument("--python", default=sys.executable, help="the interpreter of the server (default: this one)")
    replay.add_argument(
        "--any_nan_sign", action="store_true", help="ignore the signs of NaN: another processor's or compiler's differ"
    )
    replay.add_argument("--strict", action="store_true", help="report intended changes, too")
    replay.add_argument("--forms", help="comma-separated (default: all)")
    replay.add_argument("--only", help="send the request of this name alone, and print both answers whole")
    for command in (record, replay):
        command.add_argument("server_flags", nargs="*", help="more flags of the server, after --")
    return parser


def _record(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    models, hand_written = options.out / "models", list(written())
    for name in options.models.split(","):
        # A model that is there stays.
        if not (models / name).exists():
            MODELS[name](models / name)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    server = options.server_from if not Path(options.server_from).is_dir() else f"a folder, at {commit}"
    about = {"server": server, "seed": options.seed, "requests": options.requests, "flags": options.server_flags}
    (options.out / _ABOUT).write_text(json.dumps(about, indent=1))
    with _checkout(options.server_from) as root, ExitStack() as stack:
        servers = [stack.enter_context(_server(root, models, options.server_flags)) for _ in range(2)]
        clients = [stack.enter_context(closing(Exchanges(server.ready()))) for server in servers]
        served = [ask(servers[0].http, model.name) for model in sorted(models.iterdir())]
        drawing = Drawing(served, models, options.seed)
        for form in (*FORMS, OTHER):
            requests = [request for request in hand_written if request.form == form]
            if form != OTHER:
                requests += drawing.dressed(form)
                requests += [drawing.draw(form, number) for number in range(options.requests // len(FORMS))]
            varying: Counter[str] = Counter()
            with gzip.open(options.out / f"{form}{_LINES}", "wt", compresslevel=5) as file:
                for request in requests:
                    first, second = (client.send(request) for client in clients)
                    differing, _ = differences(request, [first], second)
                    varying.update(difference.part for difference in differing)
                    file.write(_line(request, [first, second] if differing else [first]))
            say(f"{form}: {len(requests)} requests; parts that vary by chance: {dict(varying) or 'none'}")
        for fault, count in (servers[0].faults + servers[1].faults).most_common():
            say(f"NOTE the servers logged {count} times: {fault}")
    return 0


def _replay(options: argparse.Namespace) -> int:
    intended, about = [] if options.strict else read_intended(), json.loads((options.corpus / _ABOUT).read_text())
    say(f"recorded from {about['server']}, seed {about['seed']}, flags {about['flags']}")
    forms = sorted(file.name.removesuffix(_LINES) for file in options.corpus.glob(f"*{_LINES}"))
    groups: dict[tuple[tuple[str, str, str], ...], list[tuple[Request, list[Difference]]]] = {}
    total = 0
    mask = without_nan_signs if options.any_nan_sign else str
    flags = (*about["flags"], *options.server_flags)
    with (
        _server(options.server, options.corpus / "models", flags, options.python) as server,
        closing(Exchanges(server.ready())) as client,
    ):
        for form in options.forms.split(",") if options.forms else forms:
            counts: Counter[str] = Counter()
            for request, recorded in _recorded(options.corpus / f"{form}{_LINES}"):
                if options.only and not f"{request.name},".startswith(f"{options.only},"):
                    continue
                outcome, left = _compared(client, request, recorded, intended, mask)
                counts[outcome] += 1
                if options.only:
                    say(f"{request.text()}\n\nrecorded: {recorded}\nnow: {client.send(request)}")
                if left:
                    key = tuple((one.part, _shape(one.was), _shape(one.now)) for one in left)
                    groups.setdefault(key, []).append((request, left))
            total += counts["different"]
            say(f"{form}: {counts.total()} requests, {dict(counts)}")
    for findings in sorted(groups.values(), key=len, reverse=True):
        counts, (request, left) = Counter(found.form for found, _ in findings), findings[0]
        first = f"{request.form}, {request.name}: {request.text()!r:.300}"
        say(f"\nDIFFERENT {len(findings)} times, {dict(counts)}; {first}")
        for one in left:
            say(f"  {one.part}: was {one.was!r:.300}, now {one.now!r:.300}")
    for change in intended:
        say(f"intended, {change.used} times: {change.reason}")
    say(f"{total} answers differ" if total else "ok")
    return 1 if total else 0


def _compared(
    client: Exchanges,
    request: Request,
    recorded: Sequence[Stored],
    intended: Sequence[Intended],
    mask: Callable[[str], str],
) -> tuple[str, list[Difference]]:
    """Sends a request and compares the answer; returns the outcome, and the differences that nobody intended.

    An answer may depend on how a request's bytes arrive, so a request whose answer differs is sent again.
    """
    for is_first in (True, False, False):
        found, varying = differences(request, recorded, client.send(request), mask)
        if not found:
            return ("equal" if is_first else "equal at another try") + (", but for parts that vary" * bool(varying)), []
    left = []
    for difference in found:
        change = next((change for change in intended if change.covers(request, difference)), None)
        if change is None:
            left.append(difference)
        else:
            change.used += 1
    return "different" if left else "different as intended", left


def _shape(text: str) -> str:
    """Masks numbers and quoted texts, so that like differences make one group."""
    return re.sub(r"\"[^\"]*\"|'[^']*'|[0-9a-f]{8,}|-?[0-9.e+]+", "_", text)[:160]


def _server(root: Path, models: Path, flags: Sequence[str], python: str = sys.executable) -> LiveServer:
    """Starts a server of every version of all models in a folder; the label "stable" is version 1."""
    bases = {model.name: model.resolve() for model in sorted(models.iterdir())}
    settings = 'model_version_policy { all {} } version_labels { key: "stable" value: 1 }'
    file = write_models(models.parent, bases, settings=settings)
    return LiveServer(f"--model_config_file={file.resolve()}", *_FLAGS, *flags, root=root, python=python)


@contextmanager
def _checkout(server_from: str) -> Iterator[Path]:
    """Yields the folder of a server: the given one, or a commit's files with the native core built from them."""
    if Path(server_from, "service").is_dir():
        yield Path(server_from).resolve()
        return
    with tempfile.TemporaryDirectory() as scratch:
        archive = subprocess.run(["git", "archive", server_from], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=scratch, input=archive, check=True)
        say(f"building the native core of {server_from} ...")
        build = [sys.executable, "-W", "ignore", "-c", "import setuptools; setuptools.setup()"]
        subprocess.run([*build, "--quiet", "build_rust", "--inplace"], cwd=scratch, check=True)
        yield Path(scratch)


def _line(request: Request, answers: Sequence[Stored]) -> str:
    """Returns a request and its answers as a line of the corpus."""
    entry = asdict(request) | {"body": base64.b64encode(request.body).decode(), "answers": list(answers)}
    return json.dumps(entry) + "\n"


def _recorded(file: Path) -> Iterator[tuple[Request, list[Stored]]]:
    """Yields the requests of a form with their answers, several if the recorded server's answers vary."""
    with gzip.open(file, "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            answers = entry.pop("answers")
            body = base64.b64decode(entry.pop("body"))
            headers = tuple((name, value) for name, value in entry.pop("headers"))
            yield Request(**entry, headers=headers, body=body), answers


def _toy(folder: Path) -> None:
    write_toy_model(folder / "1")
    write_toy_model(folder / "2", scale=10)


def _half(folder: Path) -> None:
    write_half(_tensorflow(), folder / "1", added=100.0)
    write_half(_tensorflow(), folder / "2")


def _tensorflow() -> Any:
    import tensorflow

    return tensorflow


# Lookups with each combiner, policy, vocabulary, dtype of a table and order of additions; signatures of every kind and
# dtype; dense parts of models that the server cuts from their tables (mixed, columns) or runs whole (two_towers has
# string tables, tags has ragged inputs); and the demo.
MODELS: dict[str, Callable[[Path], object]] = {
    "toy": _toy,
    "policies": lambda folder: write_policy_model(folder / "1"),
    "described": lambda folder: write_described_model(folder / "1"),
    "sums": lambda folder: write_sums_model(folder / "1"),
    "half": _half,
    "kinds": lambda folder: write_kinds(_tensorflow(), folder / "1"),
    "mixed": lambda folder: write_mixed_model(_tensorflow(), folder / "1"),
    "columns": lambda folder: write_zoo_model(_tensorflow(), "columns", folder),
    "two_towers": lambda folder: write_zoo_model(_tensorflow(), "two_towers", folder),
    "tags": lambda folder: write_zoo_model(_tensorflow(), "tags", folder),
    "movielens": export_demo,
}


if __name__ == "__main__":
    sys.exit(main())
