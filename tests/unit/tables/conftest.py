"""Runs the tests of tables with both implementations of kernels: numpy and the native core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from service.native_tables import NATIVE_TABLES
from service.tables import dict_index, kernels, key_index, numpy_kernels, numpy_neighbors

KERNELS = ("gather", "combine", "sequence")
INDEX = (
    *("count_lines", "find_lines", "line_length", "parse_integers"),
    *("index_strings", "index_integers", "find_strings", "find_integers"),
)
IMPLEMENTATIONS = [
    "numpy",
    pytest.param("native", marks=pytest.mark.skipif(NATIVE_TABLES is None, reason="the native core is not built")),
]


# Test modules without an implementation in numpy or in the core, because they test memory maps.
WITHOUT_KERNELS = ("test_guarded_files", "test_huge_pages", "test_page_table", "test_verification")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test of the kernels with each implementation."""
    if not metafunc.module.__name__.endswith(WITHOUT_KERNELS):
        metafunc.parametrize("implementation", IMPLEMENTATIONS, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Selects one implementation of kernels and indexes; does nothing in a module without kernels."""
    if not hasattr(request, "param"):
        yield ""
        return
    is_native = request.param == "native"
    by_module: list[tuple[Any, Any, tuple[str, ...]]] = [
        (kernels, NATIVE_TABLES if is_native else numpy_kernels, KERNELS),
        (kernels, NATIVE_TABLES if is_native else numpy_neighbors, ("neighbors",)),
        (key_index, NATIVE_TABLES if is_native else dict_index, INDEX),
    ]
    with pytest.MonkeyPatch.context() as patched:
        for module, chosen, names in by_module:
            for name in names:
                patched.setattr(module, name, getattr(chosen, name))
        patched.setattr(key_index, "new_index", key_index.native_slots if is_native else key_index.new_dict)
        yield request.param
