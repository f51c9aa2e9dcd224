"""What the layers may import, where the environment is read, how files are named: rules a reader can rely on."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import grpc
import pytest

from service import errors
from service.grpc.status_codes import STATUS_CODES
from service.http.errors import HTTP_STATUS
from tests.unit.test_errors import leaves

ROOT = Path(__file__).parents[1]
# The client is a distribution of its own, and its package lies deeper.
CLIENT = Path("client/src")
OURS = {"service", "model_export", "embedding_client"}
MAX_CODE_LINES = 300

# Folder or file -> what of ours, and which packages, it may import beside the standard library and its own folder.
# The first entry that fits a module holds for it.
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "service.types": ({"service.errors"}, {"numpy"}),
    "service.errors": (set(), {"numpy"}),
    "service.core": ({"service.core"}, {"numpy"}),
    # Checksums and the guard of maps are the native core's where it is there.
    "service.files": ({"service.types", "service.errors", "service.native_tables"}, {"numpy"}),
    "service.lookup": (
        {
            *(f"service.core.{name}" for name in ("types", "errors", "manifest", "validation")),
            "service.files",
            # Kernels are the native core's where it is there.
            "service.native_tables",
        },
        # ml_dtypes where it is installed: bfloat16.
        {"numpy", "ml_dtypes"},
    ),
    "service.deltas": ({"service.core", "service.lookup", "service.files"}, {"numpy"}),
    "service.graph": (
        {
            *("service.types", "service.errors", "service.artifact.manifest"),
            # Rows of all tables that a tower reads are written side by side.
            *("service.tables.row_blocks", "service.tables.table", "service.tables.plan"),
            # Sessions are the core's where it is there.
            "service._native",
        },
        # ml_dtypes gives numpy bfloat16, and comes with TensorFlow.
        {"numpy", "tensorflow", "ml_dtypes"},
    ),
    "service.codecs": (
        {
            *(
                f"service.core.{name}"
                for name in ("types", "errors", "deltas", "inference", "model_config", "validation", "version_policy")
            ),
            "service.engine.batching_parameters",
        },
        # ml_dtypes where it is installed: bfloat16.
        {"numpy", "google.protobuf", "orjson", "ml_dtypes"},
    ),
    "service.transports.http": (
        {
            "service.access.callers",
            "service.core.admission",
            "service.engine.bound",
            "service.engine.engine",
            "service.engine.inference",
            "service.engine.request_context",
            "service.engine.tracing",
            "service.types",
            "service.errors",
            "service.codecs",
            "service.access.peer",
            "service.native.forwarded",
        },
        {"numpy", "fastapi", "starlette", "orjson"},
    ),
    "service.transports.grpc": (
        {
            "service.access.callers",
            "service.core.admission",
            "service.engine.bound",
            "service.engine.engine",
            "service.engine.inference",
            "service.engine.request_context",
            "service.engine.tracing",
            "service.types",
            "service.errors",
            "service.codecs",
            "service.access.peer",
            "service.native.forwarded",
        },
        # Messages of health and reflection can be malformed, and protobuf says so with an error of its own.
        {"grpc", "grpc_health", "grpc_reflection", "google.protobuf.message"},
    ),
    # An optional extra, imported by service.observe.tracing alone.
    "service.tracing": (
        {"service.core", "service.configuration.settings", "service.configuration.settings_reading"},
        {"opentelemetry", "starlette"},
    ),
    "service.configuration": (
        {"service.core", "service.codecs", "service.observe.reload_metrics", "service.near_names"},
        set(),
    ),
    # Where lookups, graphs and deltas become one servable.
    "service.loading": (
        {
            *(f"service.{name}" for name in ("core", "files", "lookup", "deltas", "graph", "codecs")),
            "service.configuration.settings",
            "service.configuration.text_file",
            "service.observe.metrics",
            "service.configuration.start_error",
        },
        {"numpy"},
    ),
    # What the native core is told, and what it counted; what is left in Python runs behind it.
    "service.dataplane": (
        {
            *(f"service.{name}" for name in ("_native", "core", "lookup", "tls")),
            "service.wire.ssl_config_proto",
            "service.configuration.settings",
            "service.graph.native_form",
            "service.observe.buckets",
            "service.observe.request_metrics",
            "service.configuration.start_error",
        },
        {"numpy"},
    ),
    # What is left joins the layers: app, cli, observability and the like.
    "service": ({"service"}, {"numpy", "prometheus_client", "uvicorn", "uvloop"}),
    # The only readers of other people's formats; their libraries are an optional extra.
    "model_export.importers": (
        {
            "model_export",
            "service.artifact.manifest",
            "service.types",
            "service.artifact.crc32c",
            "service.artifact.bundle",
        },
        {"numpy", "pyarrow", "tensorstore"},
    ),
    # It knows the wire only, and works beside any version of protobuf (docs/adr/0042). ml_dtypes where it is installed:
    # bfloat16.
    "embedding_client": ({"embedding_client"}, {"numpy", "grpc", "httpx", "ml_dtypes"}),
    "model_export": (
        {
            "model_export",
            "service.artifact.manifest",
            "service.types",
            "service.errors",
            # How both programs suggest a name for a misspelt one.
            "service.near_names",
            # What `verify` accepts, the server serves: one judgement.
            "service.artifact.signature_rules",
            # Free of the server: how a delta lies in its file, and how rows of fewer bits are rounded.
            "service.artifact.delta_checks",
            "service.artifact.crc32c",
            "service.artifact.delta_file",
            "service.artifact.delta_inbox",
            "service.artifact.delta_journal",
            "service.artifact.rounding",
            # What saved_model.pb says, read as the server reads it and without TensorFlow.
            "service.artifact.protos",
            "service.artifact.signature_def",
            # `adopt` finds lookups in a graph, proves and times them with what the server cuts and runs them with.
            "service.graph",
            "service.lookup",
            "service.loading.towers",
            # It times them from bytes to bytes, as the server answers, for a run is the smaller part of that.
            "service.artifact.tensor_proto",
            "service.engine.engine",
            "service.engine.registry",
            "service.engine.servable",
            "service.native.choice",
            "service.native.native_servable",
            "service.loading.native_graphs",
            "service._native",
            "service.grpc.methods",
            "service.wire.grpc_api",
        },
        {"numpy", "tensorflow", "tensorflow_recommenders", "tf_keras", "tqdm", "google.protobuf"},
    ),
}
# Packages whose __init__.py names what is public. That of model_export imports each name on first use (docs/adr/0008).
PUBLIC_PACKAGES = [Path("model_export"), CLIENT / "embedding_client"]


def python_files(*folders: str) -> list[Path]:
    """Returns the source files below folders of the repository, relative to it."""
    return sorted(file.relative_to(ROOT) for folder in folders for file in (ROOT / folder).rglob("*.py"))


SOURCES = python_files("service", "model_export", str(CLIENT))
by_file = pytest.mark.parametrize("file", SOURCES, ids=str)


def module_name(file: Path) -> str:
    """Returns the dotted name of a source file."""
    inner = file.relative_to(CLIENT) if file.is_relative_to(CLIENT) else file
    return ".".join(inner.with_suffix("").parts).removesuffix(".__init__")


def module_path(name: str) -> Path:
    """Returns where a module of ours lies, without its ending."""
    return ROOT / (CLIENT if name.split(".")[0] == "embedding_client" else "") / name.replace(".", "/")


@cache
def tree(file: Path) -> ast.Module:
    """Returns a source file's syntax tree."""
    return ast.parse((ROOT / file).read_text(), str(file))


def imports(file: Path) -> Iterator[str]:
    """Yields every module a file imports, also inside functions; `from a import b` gives a.b where that is a module."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{file}:{node.lineno}: relative import"
            for alias in node.names:
                as_module = module_path(node.module) / alias.name
                # The native core is a module with a stub beside it.
                is_module = as_module.is_dir() or any(as_module.with_suffix(end).exists() for end in (".py", ".pyi"))
                yield f"{node.module}.{alias.name}" if is_module else node.module


def is_below(name: str, packages: set[str]) -> bool:
    """Says whether a dotted name is one of the packages or in one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


@by_file
def test_a_layer_imports_only_what_its_row_of_the_table_allows(file: Path) -> None:
    name = module_name(file)
    row = next(row for row in MAY_IMPORT if is_below(name, {row}))
    ours, packages = MAY_IMPORT[row]
    # A single file may import nothing of its folder but what its row says.
    own = {row} if module_path(row).is_dir() else set()
    for imported in imports(file):
        if imported.split(".")[0] in sys.stdlib_module_names:
            continue
        allowed = ours | own if imported.split(".")[0] in OURS else packages
        assert is_below(imported, allowed), f"{file} imports {imported}; {row} may import {sorted(ours | packages)}"


def test_only_the_graph_folder_names_tensorflow() -> None:
    using = {file.parts[1] for file in SOURCES if file.parts[0] == "service" and "tensorflow" in set(imports(file))}
    assert using == {"graph"}


@pytest.mark.parametrize("file", python_files("loadtest", "examples"), ids=str)
def test_load_tests_and_examples_know_the_wire_only(file: Path) -> None:
    # What an example shows: the exporter's public names, or the client's, which is one of the stock clients too.
    shows_client = {"client.py", "stock_clients"}
    shown = {"export": {"model_export"}, **dict.fromkeys(shows_client, {"embedding_client"})}.get(file.parts[1], set())
    if file == Path("loadtest/bench/huge_pages.py"):
        # Nor what a row costs by itself, beside microseconds of a wire.
        shown = {"service.files", "service.tables.kernels"}
    if file == Path("loadtest/bench/cut_vs_whole.py"):
        # Nor what a graph costs cut and whole, beside each other in one process.
        shown = {"service.core", "service.graph", "service.loading"}
    if file == Path("loadtest/foreign/adopting.py"):
        # A command for each of a hundred models would import TensorFlow a hundred times.
        shown = {"model_export"}
    ours = [name for name in imports(file) if is_below(name, OURS | {"tests"})]
    assert not [name for name in ours if not is_below(name, shown)]


def reads_environment(file: Path) -> bool:
    """Says whether a file touches the process's environment."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "environb", "getenv", "putenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        for node in ast.walk(tree(file))
    ) or any(
        isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and {a.name for a in node.names} & {"environ", "getenv"}
        for node in ast.walk(tree(file))
    )


def test_the_environment_is_read_in_one_file_of_each_package() -> None:
    reading = [str(file) for file in SOURCES if reads_environment(file)]
    assert reading == ["model_export/tensorflow_setup.py", "service/configuration/settings_reading.py"]


@pytest.mark.parametrize(
    "file", python_files("service", "model_export", "client", "loadtest", "examples", "tests"), ids=str
)
def test_a_files_name_says_a_thing(file: Path) -> None:
    assert file.stem not in ("utils", "util", "helpers", "helper", "common", "manager", "misc")


@by_file
def test_a_file_stays_small(file: Path) -> None:
    assert code_lines((ROOT / file).read_text()) <= MAX_CODE_LINES


def code_lines(source: str) -> int:
    """Counts lines that hold code: not blank, not a comment, not part of a docstring."""
    lines: set[int] = set()
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in ignored:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def test_code_lines_counts_code() -> None:
    assert code_lines('"""Doc\nstring."""\n\n# comment\nx = [\n  1,\n]\ny = """a\nb"""  # two more\n') == 5


@pytest.mark.parametrize(
    "file", [file for file in SOURCES if file.name == "__init__.py" and file.parent not in PUBLIC_PACKAGES], ids=str
)
def test_a_packages_init_holds_only_its_rule(file: Path) -> None:
    (statement,) = tree(file).body
    assert ast.get_docstring(tree(file))
    assert isinstance(statement, ast.Expr)


def test_the_exporter_imports_nothing_until_a_name_is_used() -> None:
    script = "import model_export, sys; print([m for m in sys.modules if m.startswith('model_export.')])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@by_file
def test_every_public_name_has_a_docstring(file: Path) -> None:
    assert ast.get_docstring(tree(file)), f"{file} has no docstring"
    missing = [f"{file}:{node.lineno} {node.name}" for node in public_definitions(tree(file)) if not documented(node)]
    assert missing == []


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_definitions(node: ast.AST) -> Iterator[Definition]:
    """Yields public classes and functions, and the public methods of public classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child)


def documented(node: Definition) -> bool:
    """Says whether a definition has a docstring, or is a protocol's attribute, which needs none."""
    body = node.body[-1]
    is_declaration = isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant) and body.value.value is ...
    is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in getattr(node, "decorator_list", []))
    return bool(ast.get_docstring(node)) or (is_declaration and is_property)


@pytest.mark.parametrize("file", python_files("tests", "loadtest", "examples", ".ci"), ids=str)
def test_every_other_file_says_what_it_is_for(file: Path) -> None:
    assert ast.get_docstring(tree(file)), f"{file} has no docstring"


@pytest.mark.parametrize("cls", leaves(), ids=lambda cls: cls.__name__)
def test_every_error_has_its_own_row_on_both_wires(cls: type[errors.ServiceError]) -> None:
    assert cls in HTTP_STATUS, "by itself, not by a base class"
    assert 400 <= HTTP_STATUS[cls] < 600
    assert STATUS_CODES[cls.code] is grpc.StatusCode[cls.code]


def test_the_tables_of_the_wires_hold_nothing_else() -> None:
    everything = {errors.ServiceError, *_subclasses(errors.ServiceError)}
    assert set(HTTP_STATUS) == everything
    assert set(STATUS_CODES) == set(get_args(errors.Code))


def _subclasses(cls: type[errors.ServiceError]) -> Iterator[type[errors.ServiceError]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def test_no_error_stands_in_a_table_twice() -> None:
    source = tree(Path("service/http/errors.py"))
    (table,) = [
        node.value
        for node in ast.walk(source)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "HTTP_STATUS"
    ]
    assert isinstance(table, ast.Dict)
    names = [ast.unparse(key) for key in table.keys if key is not None]
    assert sorted(names) == sorted(set(names))


def test_the_server_starts_without_tensorflow() -> None:
    code = (
        "import sys, service.process.app, service.process.cli\n"
        "heavy = {'tensorflow', 'opentelemetry.sdk', 'tf_keras', 'keras', 'tensorflow_serving', 'model_export'}\n"
        "heavy |= {'numba', 'llvmlite'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def tracked_files() -> list[Path]:
    """Returns the repository's files as git sees them, new ones included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in result.stdout.split("\0") if name and (ROOT / name).is_file()]


# In pieces, so that this file does not hold what it forbids.
MACHINE_PATHS = re.compile(
    rb"(?<![\w.])/(" + rb"|".join([rb"ho" + rb"me", rb"ro" + rb"ot", rb"Us" + rb"ers", rb"wo" + rb"rk"]) + rb")/\w"
)
REGISTRY_HOSTS = re.compile(
    b"|".join(
        [
            b"files\\.python" + b"hosted",
            b"py" + b"pi\\.org",
            b"registry-1\\." + b"docker",
            b"registry\\.npm" + b"js",
            b"gh" + b"cr\\.io",
        ]
    )
)


def test_no_file_holds_a_path_of_a_machine() -> None:
    for file in tracked_files():
        found = MACHINE_PATHS.search(file.read_bytes())
        assert found is None, f"{file.relative_to(ROOT)} holds {found.group(0)!r}"


def test_no_file_names_a_package_registry() -> None:
    for file in tracked_files():
        found = REGISTRY_HOSTS.search(file.read_bytes())
        assert found is None, f"{file.relative_to(ROOT)} names {found.group(0)!r}"


def test_the_lock_file_pins_versions_and_no_places() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert pins
    for line in pins:
        assert re.match(r"^[A-Za-z0-9._-]+(\[[a-z,]+\])?==[^\s;]+( *;.*)?$", line), line
        assert "://" not in line
