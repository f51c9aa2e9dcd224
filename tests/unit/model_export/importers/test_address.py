"""Addresses of tables are parsed, and each has the format in which it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.importers.address import Address
from model_export.importers.formats import open_table
from tests.unit.model_export.importers.reading import matrix, read_all


@pytest.mark.parametrize(
    ("text", "path", "name", "options"),
    [
        ("a.npy", "a.npy", None, {}),
        ("a.npz:b", "a.npz", "b", {}),
        ("c:d.npz:b", "c:d.npz", "b", {}),
        ("a.parquet?key=k&vector=x,y", "a.parquet", None, {"key": "k", "vector": "x,y"}),
        ("a.parquet?vector=a%26b%3Dc", "a.parquet", None, {"vector": "a&b=c"}),
        ("ckpt:a/b?stacks=s.json", "ckpt", "a/b", {"stacks": "s.json"}),
        ("what?.npy", "what?.npy", None, {}),
    ],
)
def test_parsing(text: str, path: str, name: str | None, options: dict[str, str]) -> None:
    address = Address.parse(text)
    assert (str(address.path), address.name, dict(address.options)) == (path, name, options)


@pytest.mark.parametrize("text", ["a.parquet?key=a&vector", "a.parquet?key=a&key=b"])
def test_options_at_fault(text: str) -> None:
    with pytest.raises(ExportError, match="is no option; write"):
        Address.parse(text)


def test_a_path_with_a_colon(tmp_path: Path) -> None:
    np.save(tmp_path / "a:b.npy", matrix(2, 2))
    np.testing.assert_array_equal(read_all(tmp_path / "a:b.npy")[0], matrix(2, 2))


def test_formats_that_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="nowhere.npy does not exist"):
        open_table(f"{tmp_path}/nowhere.npy")
    (tmp_path / "data.xyz").write_bytes(b"")
    with pytest.raises(ExportError, match=r"its format does not show in its name; add \?format= with one of npy, npz"):
        open_table(f"{tmp_path}/data.xyz")
    with pytest.raises(ExportError, match="format 'xls' is not known; there are npy"):
        open_table(f"{tmp_path}/data.xyz?format=xls")
    with pytest.raises(ExportError, match="is a folder, but neither a SavedModel"):
        open_table(str(tmp_path))
    np.save(tmp_path / "x.npy", matrix(2, 2))
    (tmp_path / "x.npy").rename(tmp_path / "data.xyz")
    np.testing.assert_array_equal(read_all(f"{tmp_path}/data.xyz?format=npy")[0], matrix(2, 2))


def test_a_name_with_a_colon(tmp_path: Path) -> None:
    (tmp_path / "model.h5").touch()
    address = Address.parse(f"{tmp_path}/model.h5:user/embeddings:0")
    assert (address.path.name, address.name) == ("model.h5", "user/embeddings:0")


def test_a_name_where_there_are_none_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", matrix(2, 2))
    with pytest.raises(ExportError, match="npy holds one table, which has no name; leave ':user' out"):
        open_table(f"{tmp_path}/x.npy:user")


def test_a_missing_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for library, name in (("pyarrow", "t.parquet"), ("tensorstore", ".zarray")):
        monkeypatch.setitem(sys.modules, library, None)
        (tmp_path / library).mkdir()
        (tmp_path / library / name).write_bytes(b"")
        with pytest.raises(ExportError, match=rf"need {library}, .*: in a checkout, pip install '\.\[import\]'"):
            open_table(f"{tmp_path}/{library}")
