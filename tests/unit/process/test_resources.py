"""Freed memory is kept: the same large answers built again and again fault no pages in."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
