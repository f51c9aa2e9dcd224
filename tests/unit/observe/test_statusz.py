"""Checks the settings, durations and memory in the status document."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path

import numpy as np
import pytest

from service.configuration.settings import Settings
from service.configuration.settings_reading import shown_settings
from service.observe.metric_text import REQUEST, Times
from service.observe.statusz import quantile_ms
from service.tables.huge_pages import resident_bytes


def test_settings_are_shown_and_secrets_are_not() -> None:
    @dataclasses.dataclass(frozen=True)
    class WithSecrets:
        model_name: str = "default"
        port: int = 8500
        admin_token: str = ""
        key_passphrase: str = ""

    shown = shown_settings(WithSecrets(model_name="m", admin_token="hunter2"))  # type: ignore[arg-type]
    assert shown == {
        "model_name": {"value": "m", "is_default": False},
        "port": {"value": 8500, "is_default": True},
        "admin_token": {"value": "(hidden)", "is_default": False},
        "key_passphrase": {"value": "", "is_default": True},
    }
    assert set(shown_settings(Settings())) == {one.name for one in dataclasses.fields(Settings)}


def test_quantiles_lie_within_buckets() -> None:
    times = Times(REQUEST)
    assert quantile_ms(times, 0.5) is None
    for seconds in [0.0004] * 99 + [0.0099]:
        times.add(seconds)
    limits_ms = [limit * 1e3 for limit in REQUEST.limits_s]
    half, most, all_of_them = (quantile_ms(times, share) for share in (0.5, 0.99, 1.0))
    end = min(limit for limit in limits_ms if limit >= 0.4)
    begin = max(limit for limit in limits_ms if limit < 0.4)
    assert most == pytest.approx(end) and half == pytest.approx(begin + (end - begin) * 50 / 99)
    assert all_of_them == min(limit for limit in limits_ms if limit >= 9.9)
    times.add(1e9)
    assert quantile_ms(times, 1.0) == limits_ms[-1]


def test_resident_pages_are_those_that_were_read(tmp_path: Path) -> None:
    path = tmp_path / "table"
    pages = 1024
    path.write_bytes(bytes(pages * mmap.PAGESIZE))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    # Without MADV_RANDOM, a read of one page also maps the pages around it.
    mapped.madvise(mmap.MADV_RANDOM)
    array = np.frombuffer(mapped, np.uint8)
    before = resident_bytes(array)
    if before is None:
        pytest.skip("/proc/self/pagemap is not there")
    assert before == 0
    int(array[:: mmap.PAGESIZE].sum())
    assert resident_bytes(array) == pages * mmap.PAGESIZE
    assert resident_bytes(array[: mmap.PAGESIZE + 1]) == 2 * mmap.PAGESIZE
