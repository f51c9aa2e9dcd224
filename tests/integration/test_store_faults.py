"""A short run of loadtest.store_faults: each fault has its state and text, and the server still serves version 1."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

if not all(map(importlib.util.find_spec, ("obstore", "moto"))):
    pytest.skip("obstore or moto is not installed", allow_module_level=True)

from loadtest import store_faults
from tests.integration.s3_server import S3Server
from tests.integration.store_proxy import StoreProxy

# At least one fault each of listings, of reads, of an object's bytes, and of uploads; the faults that are left out use
# the same code.
CHOSEN = ("html_list", "throttled", "short", "flipped", "torn")


def test_each_fault_is_told_and_the_old_version_serves_on(s3: S3Server, proxy: StoreProxy, tmp_path: Path) -> None:
    chosen = [fault for fault in store_faults.faults() if fault.name in CHOSEN]
    assert len(chosen) == len(CHOSEN)
    rows = store_faults.break_each(s3, proxy, tmp_path, chosen)
    assert [row.fault for row in rows if not row.is_expected] == [], store_faults.printed(rows)
    assert all(row.afterwards == "version 2" for row in rows)


def test_the_table_marks_what_was_not_as_expected() -> None:
    rows = [store_faults.Row("as told", text="a|b", is_expected=True), store_faults.Row("not told")]
    lines = store_faults.printed(rows).splitlines()
    assert lines[2].startswith("| 1 | as told |") and "a/b" in lines[2]
    assert lines[3].startswith("| ! 2 | not told |")
