"""Freed memory is kept for the next large answers, and returned when many connections have closed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from service.process.resources import FreedMemory

# Allocates four buffers of 2.6 MB and frees them together, fifty times after five that are not counted; page faults
# show memory that went back to the kernel.
SCRIPT = """
import resource, sys
from service.process.resources import keep_freed_memory
is_kept = keep_freed_memory(int(sys.argv[1]))
def answers(): return [bytearray(2_621_440) for _ in range(4)]
for _ in range(5): answers()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50): answers()
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mib: int) -> tuple[bool, int]:
    command = [sys.executable, "-c", SCRIPT, str(mib)]
    is_kept, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return is_kept == "True", int(count)


@pytest.mark.slow
def test_kept_memory_is_not_faulted_in_again() -> None:
    is_kept, kept = faults(64)
    if not is_kept:
        pytest.skip("not glibc")
    is_changed, unchanged = faults(0)
    assert not is_changed
    # A buffer has 640 pages, and 200 buffers are allocated: without the setting, most of them get new pages from the
    # kernel.
    assert kept < 640
    assert unchanged > 50 * 640


# Frees 40 MB in blocks of 2 KB, and prints how many MiB of them are resident after each of three counts of connections.
FLOOD = """
from pathlib import Path
from service.process.resources import FreedMemory, keep_freed_memory
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
is_kept = keep_freed_memory(64)
freed = FreedMemory()
before = resident()
blocks = [bytearray(2000) for _ in range(20_000)]
del blocks
print(is_kept)
for count in (300, 151, 150):
    freed.look(count, 0)
    print(resident() - before)
"""


@pytest.mark.slow
def test_kept_memory_is_returned_when_half_of_many_connections_have_closed() -> None:
    command = [sys.executable, "-c", FLOOD]
    is_kept, at_most, before_half, at_half = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.split()
    if is_kept != "True":
        pytest.skip("not glibc")
    assert int(at_most) > 30
    assert int(before_half) > 30
    assert int(at_half) < 10


def trims(*steps: int) -> list[bool]:
    """Says for each look whether freed memory was returned; steps: MiB that requests held since the look before."""
    freed = FreedMemory()
    counted: list[int] = []
    freed._trim = counted.append  # type: ignore[assignment]
    found, total = [], 0
    for step in steps:
        before, total = len(counted), total + (step << 20)
        freed.look(1, total)
        found.append(len(counted) > before)
    return found


def test_freed_memory_is_returned_once_after_a_flood_of_bytes() -> None:
    assert trims(900, 900, 80, *[0] * 3, *[0] * 20) == [*[False] * 6, True, *[False] * 19]


@pytest.mark.parametrize("steps", [[20] * 100, [0, 200] * 50, [0, 0, 0, 0, 900] * 20, [60, *[0] * 100]])
def test_freed_memory_is_kept_for_a_load_that_goes_on(steps: list[int]) -> None:
    assert not any(trims(*steps))
