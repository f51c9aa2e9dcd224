"""Starts a server with many models, and waits for each model; some models may fail to load."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from loadtest.live_server import LiveServer

_PATIENCE_S = 180


class NotServed(Exception):
    """Raised if a model is not AVAILABLE, or if its server has ended."""


def serve(bases: Mapping[str, Path], config: Path) -> LiveServer:
    """Starts a server of models, given by name and base path; config: path at which the list of models is written."""
    lines = [
        f'config {{ name: "{name}" base_path: "{base}" model_platform: "tensorflow" }}' for name, base in bases.items()
    ]
    config.write_text("model_config_list {\n" + "\n".join(lines) + "\n}\n")
    # The server must not retry a failed load: it would wait a minute before it loads the broken model again.
    once = ("--file_system_poll_wait_seconds=0", "--max_num_load_retries=0")
    return LiveServer(f"--model_config_file={config}", *once)


def wait_for(server: LiveServer, model: str) -> None:
    """Waits until the server answers for a model; raises NotServed with the server's reason if it can not."""
    end_s = time.monotonic() + _PATIENCE_S
    while server.is_alive and time.monotonic() < end_s:
        with urllib.request.urlopen(f"{server.http}/v1/models/{model}", timeout=_PATIENCE_S) as response:
            states = json.load(response)["model_version_status"]
        if any(state["state"] == "AVAILABLE" for state in states):
            return
        ended = [state for state in states if state["state"] == "END"]
        if ended:
            raise NotServed(f"not loaded: {ended[0]['status']['error_message']}")
        time.sleep(0.05)
    raise NotServed(f"not loaded within {_PATIENCE_S} s" if server.is_alive else "the server has ended")
