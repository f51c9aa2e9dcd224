"""Tests on a real server that an unloaded version leaves no map and no descriptor, without the garbage collector."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Serve
from tests.integration.process import DATA_PLANES, ServerProcess, until
from tests.integration.test_reload import versions

# Python imports this module at its start; a threshold of 0 ends automatic garbage collections.
NEVER_COLLECTED = "import gc\ngc.set_threshold(0)\n"


def held(server: ServerProcess, base: Path, newest: int) -> list[str]:
    """Returns the maps and descriptors of a server process on files of older versions, and on deleted files of any."""
    maps = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{server.pid}/maps").read_text().splitlines()]
    links = []
    for descriptor in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            links.append(os.readlink(descriptor))
        except FileNotFoundError:  # a descriptor that was closed meanwhile
            continue
    ours = [name.rstrip() for name in (*maps, *links) if name.startswith(f"{base}/")]
    return sorted({name for name in ours if not name.startswith(f"{base}/{newest}/") or name.endswith(" (deleted)")})


@pytest.mark.tf
# Recorded requests, whose file fails the last load, are run by the core alone.
@pytest.mark.parametrize("data_plane", [plane for plane in DATA_PLANES if plane == "native"])
@pytest.mark.parametrize("graph_signatures", ["auto", "off"])
def test_an_unloaded_version_leaves_no_map_and_no_descriptor_without_the_collector(
    serve: Serve,
    tower_version: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    graph_signatures: str,
    data_plane: str,
) -> None:
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(NEVER_COLLECTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "start"))
    towers, incoming = tmp_path / "towers", tmp_path / "incoming"
    shutil.copytree(tower_version, towers / "1")
    server = serve(
        model_base_path=towers, graph_signatures=graph_signatures, data_plane=data_plane, max_num_load_retries=0
    ).ready()
    for version in range(2, 7):
        shutil.copytree(tower_version, incoming)
        incoming.rename(towers / str(version))
        server.wait_for_log("loaded", version=version)
        shutil.rmtree(towers / str(version - 1))
        until(lambda: list(versions(server)) == [version])  # noqa: B023
    # A load that fails at its last step, after its tables are mapped and its graphs are opened.
    shutil.copytree(tower_version, incoming)
    (incoming / "assets.extra" / "tf_serving_warmup_requests").write_bytes(b"no record")
    incoming.rename(towers / "7")
    server.wait_for_log("load failed", version=7)
    shutil.rmtree(towers / "7")
    until(lambda: list(versions(server)) == [6])
    # A servable is freed a moment after its state is END, by the thread that has set the state.
    until(lambda: not held(server, towers, 6))
