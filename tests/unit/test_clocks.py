"""Only the modules named here read a clock that may jump; deadlines, retries, drains and rates are monotonic."""

from __future__ import annotations

import ast
from pathlib import Path

SERVICE = Path(__file__).parents[2] / "service"
MAY_READ_THE_WALL = {
    # It computes the age of a file, whose time is from the file system's clock.
    "engine/loads.py",
    # The end of a certificate is a time of the calendar.
    "access/tls.py",
    # A session of the console ends at the same wall-clock time on all replicas.
    "access/sessions.py",
    # These modules put times into the names of files, or show them to people.
    "native/statistics.py",
    "observe/request_logs.py",
    "observe/statusz.py",
    "observe/history.py",
    # It reads the time at which a row is changed, for the console.
    "deltas/version_deltas.py",
}
_WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}


def test_the_wall_clock_is_read_for_nothing_else() -> None:
    reading = {
        str(file.relative_to(SERVICE))
        for file in SERVICE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in _WALL
    }
    assert reading == MAY_READ_THE_WALL
