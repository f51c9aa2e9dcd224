"""Where compiled kernels go: the folder asked for, or a copy of it where it can not be written."""

from __future__ import annotations

import os
from pathlib import Path

import numba
import pytest

from service.lookup import kernel_cache


@pytest.fixture(autouse=True)
def same_cache_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives numba its folder back."""
    for name in ("CACHE_DIR", "CPU_NAME", "CPU_FEATURES"):
        monkeypatch.setattr(numba.config, name, getattr(numba.config, name))


def test_a_folder_that_can_be_written_is_used_and_made_where_missing(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    used = kernel_cache.use(folder)
    assert used.parent == folder and used.is_dir()
    assert numba.config.CACHE_DIR == str(used)
    assert kernel_cache.use(folder) == used


def test_other_sources_have_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lookup").mkdir()
    (tmp_path / "direct").mkdir()
    monkeypatch.setattr(kernel_cache, "__file__", str(tmp_path / "lookup" / "kernel_cache.py"))
    used = []
    for text in ("a = 1", "a = 1", "a = 2"):
        # It is compiled into kernels of other files.
        (tmp_path / "direct" / "vectors.py").write_text(text)
        used.append(kernel_cache.use(tmp_path / "kernels"))
    assert used[0] == used[1] != used[2]


@pytest.mark.parametrize("exists", [True, False])
def test_otherwise_a_copy_of_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
    # Access is taken away by answer and not by mode: tests may run as root, whom modes do not stop.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "shipped"
    if exists:
        with monkeypatch.context() as writable:
            writable.setattr(os, "access", lambda path, mode: True)
            (kernel_cache.use(folder) / "kernel.nbi").write_text("code")
    used = kernel_cache.use(folder)
    assert used.parent == tmp_path
    assert used != folder
    assert numba.config.CACHE_DIR == str(used)
    assert [p.name for p in used.iterdir()] == (["kernel.nbi"] if exists else [])


def test_a_folder_that_can_not_be_made_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").write_text("")
    assert kernel_cache.use(tmp_path / "file" / "below").is_dir()


def test_a_folder_is_filled_once_code_is_there(tmp_path: Path) -> None:
    used = kernel_cache.use(tmp_path)
    assert not kernel_cache.is_filled(used)
    (used / "kernels_1").mkdir()
    (used / "kernels_1" / "gather.nbc").write_bytes(b"")
    assert kernel_cache.is_filled(used)


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("processor : 0\nflags : fpu fma movbe avx f16c abm bmi1 avx2 bmi2\n", True),
        ("processor : 0\nflags : fpu fma movbe avx f16c abm bmi1 bmi2\n", False),
        ("processor : 0\nFeatures : fp asimd\n", False),
        (None, False),
    ],
    ids=["all of them", "no AVX2", "another kind of processor", "no such file"],
)
def test_processors_that_have_what_is_common(tmp_path: Path, text: str | None, is_so: bool) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    assert kernel_cache._has_common_flags(file) is is_so
