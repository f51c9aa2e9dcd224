"""Checks that no file names a machine's path, a package registry or a program that is gone; versions are pinned."""

from __future__ import annotations

import re

from tests.source_files import ROOT, faultless, tracked_files

# The regular expressions are written in pieces, so that they do not match this file.
MACHINE_PATHS = re.compile(
    rb"(?<![\w.])/(" + rb"|".join([rb"ho" + rb"me", rb"ro" + rb"ot", rb"Us" + rb"ers", rb"wo" + rb"rk"]) + rb")/\w"
)
REGISTRY_HOSTS = re.compile(
    b"|".join(
        [
            b"files\\.python" + b"hosted",
            b"py" + b"pi\\.org",
            b"registry-1\\." + b"docker",
            b"registry\\.npm" + b"js",
            b"gh" + b"cr\\.io",
        ]
    )
)


def test_no_file_holds_a_path_of_a_machine() -> None:
    found = ((file, MACHINE_PATHS.search(file.read_bytes())) for file in tracked_files())
    faultless(f"{file.relative_to(ROOT)} holds {match.group(0)!r}" for file, match in found if match)


def test_no_file_names_a_package_registry() -> None:
    found = ((file, REGISTRY_HOSTS.search(file.read_bytes())) for file in tracked_files())
    faultless(f"{file.relative_to(ROOT)} names {match.group(0)!r}" for file, match in found if match)


def test_every_load_test_that_a_file_runs_is_there() -> None:
    modules = {file.with_suffix("").relative_to(ROOT).as_posix() for file in tracked_files() if file.suffix == ".py"}
    run = ((file, one) for file in tracked_files() for one in re.findall(rb"-m (loadtest[.\w]*\w)", file.read_bytes()))
    named = {(file, one.decode().replace(".", "/")) for file, one in run}
    assert named
    gone = ((file, one) for file, one in named if not {one, f"{one}/__main__"} & modules)
    faultless(f"{file.relative_to(ROOT)} runs {one}, which is gone" for file, one in gone)


def test_the_lock_file_pins_versions_and_no_places() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert pins
    for line in pins:
        assert re.match(r"^[A-Za-z0-9._-]+(\[[a-z,]+\])?==[^\s;]+( *;.*)?$", line), line
        assert "://" not in line
