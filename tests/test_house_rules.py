"""Checks rules about the source: imports between folders, reads of the environment, files, and tables of errors."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import grpc
import pytest

from service import errors
from service.grpc.refusals import STATUS_CODES
from service.http.errors import HTTP_STATUS
from tests import rust_sources
from tests.source_files import (
    CLIENT,
    MODULES,
    ROOT,
    SOURCES,
    faultless,
    imports,
    is_below,
    module_path,
    nodes,
    python_files,
    run_nodes,
    tree,
)
from tests.unit.test_errors import leaves

MAX_CODE_LINES = 500


class Row(NamedTuple):
    """Imports that a folder, or a file outside of folders, may have beside the standard library and its own modules.

    ours: folders and modules of ours. packages: of others.
    """

    ours: set[str] = set()
    packages: set[str] = set()


# _BASE: modules that every folder of the server may import. _FORMATS: the same, and the formats of files.
_BASE = {"service.errors", "service.types"}
_FORMATS = _BASE | {"service.artifact"}
# _SHARED: modules of the server that every folder of model_export may import.
_SHARED = _FORMATS | {"model_export.environment", "model_export.errors"}
_TRAINED = _SHARED | {"model_export.spec", "model_export.tensorflow_setup"}

# The table of allowed imports. A row names only rows above it, so that no two folders import each other
# (docs/adr/0043).
MAY_IMPORT: dict[str, Row] = {
    "service._native": Row(),
    "service.errors": Row(),
    "service.types": Row({"service.errors"}, {"numpy"}),
    # service.native_tables imports the native core's kernels and checksums, if the core is installed.
    "service.native_tables": Row({"service._native"}),
    # service.artifact imports ml_dtypes, if it is installed, for bfloat16.
    "service.artifact": Row(_BASE | {"service.native_tables"}, {"numpy", "google.protobuf", "orjson", "ml_dtypes"}),
    # The versions import artifact.completeness, because a version folder that is not complete must be ignored, and
    # artifact.row_labels for what people call the rows of tables.
    "service.versions": Row(_BASE | {"service.artifact.completeness", "service.artifact.row_labels"}, {"numpy"}),
    "service.search": Row(_BASE | {"service.artifact.row_labels", "service.versions"}, {"numpy"}),
    "service.control": Row(_BASE | {"service.search", "service.versions"}, {"numpy"}),
    # service.remote reads tables in a cluster. redis-py is an optional extra, so modules outside this folder import it
    # late.
    "service.remote": Row(_FORMATS | {"service._native"}, {"numpy", "redis"}),
    "service.tables": Row(
        # The tables import versions.counts for counts by feature, and versions.neighbors for the types of a search for
        # nearest rows.
        _FORMATS
        | {"service.native_tables", "service.remote"}
        | {f"service.versions.{name}" for name in ("counts", "neighbors")},
        {"numpy", "ml_dtypes"},
    ),
    # service.comparison opens both versions as a load does.
    "service.comparison": Row(_FORMATS | {"service.native_tables", "service.tables"}, {"numpy"}),
    "service.wire": Row(
        _FORMATS | {"service.versions", "service.control.table_view", "service.remote.address"},
        {"numpy", "google.protobuf", "orjson", "ml_dtypes"},
    ),
    "service.configuration": Row(
        _BASE | {"service.artifact.files", "service.wire", "service.remote.address"} | {"service.versions.model_config"}
    ),
    "service.healthcheck": Row({"service.artifact.files", "service.configuration", "service.wire"}, {"grpc"}),
    # No other folder of the server may import obstore. It is an optional extra, so process.object_stores imports this
    # folder only if --store_cache_dir is set.
    "service.stores": Row(
        _FORMATS | {"service.versions.model_config"},
        {"obstore"},
    ),
    "service.deltas": Row(
        _FORMATS
        | {"service.remote", "service.tables"}
        | {"service.versions.deltas", "service.versions.registry", "service.versions.servable"},
        {"numpy"},
    ),
    # Beside the reference, no other folder of the server may import TensorFlow. ml_dtypes gives numpy bfloat16, and
    # comes with TensorFlow.
    "service.graph": Row(
        _FORMATS | {"service._native", "service.tables.plan"},
        {"numpy", "tensorflow", "ml_dtypes"},
    ),
    # The reference is independent of the core: it has its own tables, plans, checks and wires. It shares the formats of
    # files, the rules by which versions are found, and the steps that prepare a graph.
    "service.reference": Row(
        _FORMATS
        | {"service.configuration"}
        | {f"service.versions.{name}" for name in ("loads", "model_config", "model_set", "registry", "servable")}
        | {f"service.graph.{name}" for name in ("restoring", "sparse")},
        {
            "fastapi",
            "google.protobuf.message",
            "grpc",
            "grpc_health",
            "numpy",
            "orjson",
            "pydantic",
            "tensorflow",
            "uvicorn",
        },
    ),
    # opentelemetry is an optional extra, so observe.otel is the only module to import it, and process.app imports that
    # module only if --tracing is set.
    "service.observe": Row(
        _FORMATS
        | {f"service.{name}" for name in ("configuration", "control.request_context", "search", "versions")}
        | {"service.remote.address", "service.remote.core_clusters"}
        # The metrics import parts of the tables to report how much of a table is in memory.
        | {"service.tables.huge_pages", "service.tables.table"},
        {"opentelemetry", "prometheus_client", "starlette.types"},
    ),
    "service.access": Row(
        _BASE
        | {f"service.{name}" for name in ("artifact.files", "configuration", "control", "versions", "wire")}
        # service.access counts the reloads of its files (callers, certificates) in metrics, and the core reads these.
        | {"service.observe.reload_metrics", "service._native"}
    ),
    # service.core is the Python side of the native core: it describes models to the core, and reads the core's
    # counts.
    "service.core": Row(
        _BASE
        | {f"service.{name}" for name in ("_native", "access", "configuration", "control", "tables", "versions")}
        | {
            "service.artifact.manifest",
            "service.artifact.row_labels",
            "service.artifact.signature_rules",
            "service.graph.native_form",
            "service.wire.predict_proto",
            "service.wire.config_protos",
        }
        | {"service.observe.request_metrics", "service.observe.metric_text"}
        | {f"service.remote.{name}" for name in ("address", "core_clusters", "layout")},
        {"numpy"},
    ),
    # service.loading joins lookups, graphs and deltas to one servable, so it imports the folders of all three.
    "service.loading": Row(
        _FORMATS
        | {
            f"service.{name}"
            for name in (
                "comparison",
                "configuration",
                "deltas",
                "graph",
                "remote",
                "search",
                "tables",
                "versions",
                "wire",
            )
        },
        {"numpy"},
    ),
    # The reference servers may import no tables, no graphs and no settings.
    "service.http": Row(
        _BASE
        | {"service.artifact.signature_def", "service.control", "service.versions", "service.wire"}
        | {"service.access.callers", "service.access.sessions", "service.core.forwarded"}
        # The schemas of the OpenAPI document are made from the dataclasses that are written as JSON.
        | {"service.comparison.document"},
        {"fastapi", "orjson", "pydantic", "starlette", "uvicorn"},
    ),
    "service.grpc": Row(
        _BASE
        | {"service.artifact.protos", "service.artifact.signature_def", "service.wire"}
        | {"service.control", "service.versions"}
        | {"service.access.callers", "service.core.forwarded"},
        # The gRPC server catches protobuf's own error for malformed messages of the health and reflection services.
        {"grpc", "grpc_health", "grpc_reflection", "google.protobuf.message"},
    ),
    # Joins the folders.
    "service.process": Row({"service"}, {"numpy", "uvloop"}),
    "service.__main__": Row({"service.process.cli"}),
    # The client knows only the wire, so it works beside any version of protobuf (docs/adr/0042). It imports ml_dtypes,
    # if it is installed, for bfloat16.
    "embedding_client": Row(set(), {"numpy", "grpc", "httpx", "ml_dtypes"}),
    "model_export.environment": Row(),
    "model_export.errors": Row(),
    "model_export.tensorflow_setup": Row(
        {"model_export.environment", "service.graph.library"}, {"tensorflow", "tensorflow_recommenders", "tf_keras"}
    ),
    # Keras itself needs h5py, so that it is there where a model of Keras is.
    "model_export.folder_checks": Row(_SHARED | {"service.versions.model_config"}, {"h5py"}),
    "model_export.row_names": Row(_SHARED),
    "model_export.spec": Row(_SHARED, {"numpy"}),
    "model_export.training": Row(_TRAINED, {"numpy"}),
    # A signature's graph is run as the reference runs it.
    "model_export.graphs": Row(_TRAINED | {"service.reference.graphs"}, {"numpy", "tensorflow"}),
    "model_export.columns": Row(_TRAINED, {"numpy", "tensorflow"}),
    "model_export.statistics": Row(_TRAINED | {"model_export.training"}, {"numpy"}),
    # Its modules answer as the server does, in its native core, and run parts of an artifact's graph.
    "model_export.answers": Row(
        _TRAINED
        | {"model_export.graphs", "service.versions.servable", "service.graph", "service.process.trial"}
        | {f"service.{name}" for name in ("reference.models", "tables.backend", "tables.table", "wire.predict_proto")},
        {"numpy", "tensorflow"},
    ),
    # The oracle computes lookups with formulas and readers of its own, so of the server it may import only the file
    # formats.
    "model_export.parity": Row(
        _TRAINED | {f"model_export.{name}" for name in ("answers", "folder_checks", "graphs")}, {"numpy"}
    ),
    "model_export.exporter": Row(
        _TRAINED
        | {f"model_export.{name}" for name in ("folder_checks", "graphs", "parity", "row_names")}
        # The exporter reads in the written graph in which order it adds up rows.
        | {"service.graph.flat_graph"},
        {"numpy", "tensorflow"},
    ),
    "model_export.compaction": Row(
        _TRAINED
        | {f"model_export.{name}" for name in ("exporter", "folder_checks", "graphs", "parity", "statistics")}
        # Compaction imports graph.restoring to find out from which saved tensor a graph restores a variable.
        | {"service.graph.restoring"},
        {"numpy"},
    ),
    "model_export.adoption": Row(
        _TRAINED
        | {f"model_export.{name}" for name in ("answers", "exporter", "folder_checks", "graphs", "parity")}
        # Adoption finds lookups with the server's own code for cutting graphs, so that the server can cut all that
        # adoption found.
        | {"service.graph"}
        # Adoption serves the model that it described with process.trial, and times the answers.
        | {"service.process.trial"},
        {"numpy", "tensorflow"},
    ),
    # The importers read other programs' formats, with libraries that are optional extras; no other folder may import
    # these.
    "model_export.importers": Row(
        _TRAINED | {f"model_export.{name}" for name in ("adoption.spec", "exporter", "graphs", "parity")},
        {"h5py", "numpy", "pyarrow", "tensorstore"},
    ),
    # The report is written as JSON as a comparison of versions is.
    "model_export.report": Row(
        _SHARED
        | {
            f"model_export.{name}"
            for name in ("compaction", "folder_checks", "graphs", "parity", "row_names", "statistics")
        }
        | {"service.comparison.document"},
        {"numpy", "google.protobuf", "pydantic", "tqdm"},
    ),
    # model_export.diff compares two versions with the same code as the server's check for drift.
    "model_export.diff": Row(
        _SHARED
        | {f"model_export.{name}" for name in ("folder_checks", "graphs", "parity", "report")}
        | {"service.comparison"},
        {"numpy"},
    ),
    # model_export.remote writes what the server reads, so it imports the server's layout of keys.
    "model_export.remote": Row(_SHARED | {"model_export.folder_checks", "service.remote"}, {"numpy", "redis", "tqdm"}),
    # model_export.stores writes with the server's own client of object stores. obstore is an optional extra, so the
    # commands import the folder late (docs/adr/0044).
    "model_export.stores": Row(
        _SHARED | {"model_export.folder_checks", "service.versions.model_config", "service.stores.object_store"},
        {"tqdm"},
    ),
    "model_export.layers": Row(_TRAINED | {"model_export.graphs", "model_export.training"}, {"numpy"}),
    "model_export.distribution": Row(_TRAINED | {"model_export.training"}),
    # The demo, which the commands of model-export train and export.
    "movielens": Row(
        _TRAINED
        | {
            f"model_export.{name}"
            for name in ("distribution", "exporter", "folder_checks", "graphs", "parity", "training")
        },
        {"numpy", "tensorflow", "tqdm"},
    ),
    "model_export.export_model": Row(
        _SHARED
        | {f"model_export.{name}" for name in ("adoption", "exporter", "folder_checks", "graphs")}
        | {"movielens"}
    ),
    "model_export.estimator": Row(
        _TRAINED
        | {
            f"model_export.{name}"
            for name in ("columns", "distribution", "export_model", "exporter", "graphs", "statistics", "training")
        },
        {"numpy", "tensorflow"},
    ),
    # The rows of the table below are those of the commands and of their configuration files.
    "model_export.export_config": Row(
        _SHARED | {"model_export.adoption", "model_export.export_model", "model_export.folder_checks"}
    ),
    "model_export.cli": Row(
        {
            f"model_export.{name}"
            for name in ("adoption", "export_config", "folder_checks", "graphs", "report", "row_names")
        }
        | {"movielens.commands", "service.errors"}
    ),
    "model_export.commands": Row(_SHARED | {"model_export", "movielens.commands"}, {"numpy"}),
    "model_export.__main__": Row(_SHARED | {"model_export.cli", "model_export.commands"}),
}
# The table of what each folder of the Rust core, or file outside of folders, may use of the others; a row names only
# rows above it. The modules of Python stand above all others.
RUST = Path("native/src")
RUST_MAY_USE: dict[str, set[str]] = {
    "last_words.rs": set(),
    "denormals.rs": set(),
    "priority.rs": set(),
    "sync.rs": set(),
    "threads.rs": set(),
    "tables": {"denormals.rs", "priority.rs", "sync.rs"},
    "clusters": {"sync.rs"},
    "plan": {"tables", "clusters", "sync.rs"},
    "python_log.rs": {"plan"},
    # A tower calls TensorFlow, and a form knows a wire: neither knows the other.
    "towers": {"plan", "tables", "denormals.rs", "sync.rs", "threads.rs"},
    "forms": {"plan", "tables"},
    "admission": {"priority.rs", "sync.rs"},
    "forward": {"admission"},
    "edge": {"forward", "admission", "forms", "plan", "priority.rs"},
    "python_tables.rs": {"tables"},
    "python.rs": {
        *("last_words.rs", "threads.rs", "python_tables.rs", "tables", "clusters", "plan", "towers", "forms", "edge"),
    },
    "python_graphs.rs": {"plan", "towers", "python.rs"},
    "lib.rs": {"python.rs", "python_graphs.rs", "python_log.rs", "python_tables.rs"},
}
_PACKAGES = {"service", "model_export", "embedding_client", "movielens"}
# Modules of the project that load tests and examples may import, by a pattern of their paths; the others know only the
# wire.
ALSO_KNOWN: dict[str, set[str]] = {
    # These examples show the public names of the exporter, and of the client.
    "examples/export/*.py": {"model_export", "movielens"},
    # MAY_IMPORT has the row of the demo, which is installed with model_export.
    "examples/movielens/*.py": _PACKAGES,
    "examples/client.py": {"embedding_client"},
    # These load tests call adopt() themselves, because a command would import TensorFlow again for each model.
    "loadtest/foreign/children.py": {"model_export"},
    "loadtest/bench/models.py": {"model_export", "tests.toy_model"},
    # Servers with TLS have a certificate as those of the tests have.
    "loadtest/live_server.py": {"tests.certificates"},
    # This load test writes the attacked table without TensorFlow.
    "loadtest/attacks/targets.py": {"tests.toy_described"},
    # This load test writes versions, starts nodes and pushes tables with the code of the tests of remote tables.
    "loadtest/cluster_faults.py": {"model_export.remote.push", "service.remote.address", "tests"},
    # This load test uses the object stores of the tests, and the tests' proxy that breaks their answers.
    "loadtest/store_faults.py": {"tests"},
    # This load test writes versions of the toy model, because they differ in their rows and need no TensorFlow, and it
    # waits as the tests of servers do.
    "loadtest/replicas/fleet.py": {"tests.integration.process", "tests.toy_model"},
    # The simulations run the code itself, on a disk or by a clock of theirs, and write versions of the toy model.
    "loadtest/simulate/*.py": {"model_export", "service", "tests.toy_model"},
    # This load test sends the requests of the conformance tests to the models of the tests.
    "loadtest/replay/*.py": {"tests"},
    # The fuzzer mutates requests that the conformance tests encode.
    "loadtest/fuzz/seeds.py": {"tests.conformance.random_calls"},
}
# Packages whose __init__.py exports public names. The one of model_export imports each name on first use
# (docs/adr/0043).
PUBLIC_PACKAGES = [Path("model_export"), CLIENT / "embedding_client"]


def row_of(module: str) -> str | None:
    """Returns the name of the row of MAY_IMPORT to which a module belongs; None if there is none."""
    return next((row for row in MAY_IMPORT if is_below(module, {row})), None)


def test_every_module_has_a_row_and_every_row_a_module() -> None:
    # The packages themselves are skipped, because their __init__.py holds no code but public names.
    faultless(f"{file} has no row" for name, file in MODULES.items() if name not in _PACKAGES and row_of(name) is None)
    rows = {row_of(name) for name in MODULES} | {"service._native"}
    faultless(f"{row} is no module" for row in MAY_IMPORT if row not in rows)


def test_a_folder_imports_only_what_its_row_of_the_table_allows() -> None:
    faultless(fault for name, file in MODULES.items() if name not in _PACKAGES for fault in _forbidden(name, file))


def _forbidden(name: str, file: Path) -> Iterator[str]:
    row = row_of(name)
    if row is None:
        # test_every_module_has_a_row_and_every_row_a_module reports a module without a row.
        return
    ours, packages = MAY_IMPORT[row]
    # A folder may import its own modules; a single file has no folder of its own, so only its row counts.
    own = {row} if module_path(row).is_dir() else set()
    for imported in dict.fromkeys(imports(nodes(file))):
        if imported.split(".")[0] in sys.stdlib_module_names:
            continue
        allowed = ours | own if imported.split(".")[0] in _PACKAGES else packages
        if not is_below(imported, allowed):
            yield f"{file} imports {imported}; {row} may import {sorted(ours | packages)}"


def test_a_row_names_only_rows_above_it() -> None:
    names = list(MAY_IMPORT)
    faultless(
        f"{row} names {one}, which is in no row above it"
        for position, (row, (ours, _)) in enumerate(MAY_IMPORT.items())
        # The rows of service.process and model_export.commands name whole packages, because both join all other
        # folders.
        for one in ours - _PACKAGES
        if not is_below(one, names[:position])
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        name: {found for found in imports(run_nodes(tree(file))) if found in MODULES and found != name}
        for name, file in MODULES.items()
    }
    faultless(" -> ".join(circle) for circle in circles(graph))


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns one circle of imports for each group of modules that import each other; [] if there is none."""
    found = []
    left = set(graph)
    while leaves_of := {name for name in left if not graph[name] & left}:
        left -= leaves_of
    # Every module in `left` imports another module in `left`, so a walk along imports meets a module twice.
    while left:
        way = [min(left)]
        while way[-1] not in way[:-1]:
            way.append(min(graph[way[-1]] & left))
        found.append(way[way.index(way[-1]) :])
        left -= set(way)
        while leaves_of := {name for name in left if not graph[name] & left}:
            left -= leaves_of
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"c"}}) == [["b", "c", "b"]]


def test_unit_tests_lie_in_folders_of_the_tree() -> None:
    folders = {file.parent for file in python_files("tests/unit")} - {Path("tests/unit")}
    # tests/unit/client, tests/unit/loadtest and tests/unit/movielens are no folders of service or model_export.
    told = {folder.relative_to("tests/unit") for folder in folders} - {
        Path("client"),
        Path("loadtest"),
        Path("movielens"),
    }
    faultless(
        f"tests/unit/{folder} is no folder of service or model_export"
        for folder in told
        if not (ROOT / "service" / folder).is_dir() and not (ROOT / folder).is_dir()
    )


def test_only_graphs_and_the_reference_name_tensorflow() -> None:
    using = {
        file.parts[1] for file in SOURCES if file.parts[0] == "service" and "tensorflow" in set(imports(nodes(file)))
    }
    assert using == {"graph", "reference"}


def test_load_tests_and_examples_know_the_wire_only() -> None:
    files = python_files("loadtest", "examples")
    faultless(fault for file in files for fault in _known_too_much(file))
    faultless(f"{pattern} is no file" for pattern in ALSO_KNOWN if not any(file.match(pattern) for file in files))


def _known_too_much(file: Path) -> Iterator[str]:
    shown = {name for pattern, names in ALSO_KNOWN.items() if file.match(pattern) for name in names}
    for name in imports(nodes(file)):
        if is_below(name, _PACKAGES | {"tests"}) and not is_below(name, shown):
            yield f"{file} imports {name}"


def reads_environment(file: Path) -> bool:
    """Says whether a source file reads or writes the process's environment variables."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "environb", "getenv", "putenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        for node in nodes(file)
    ) or any(
        isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and {a.name for a in node.names} & {"environ", "getenv"}
        for node in nodes(file)
    )


def test_the_environment_is_read_in_one_file_of_each_package() -> None:
    reading = [str(file) for file in SOURCES if reads_environment(file)]
    assert reading == ["model_export/environment.py", "service/configuration/settings_reading.py"]


def test_a_files_name_says_a_thing() -> None:
    empty = ("utils", "util", "helpers", "helper", "common", "manager", "misc")
    files = python_files("service", "model_export", "client", "loadtest", "examples", "tests")
    faultless(f"{file} is named after no thing" for file in files if file.stem in empty)


def test_a_file_stays_small() -> None:
    # Splitting a file into tokens takes long, so files that have fewer lines of any kind are left out.
    long = {file: source for file in SOURCES if (source := (ROOT / file).read_text()).count("\n") > MAX_CODE_LINES}
    lines = {file: code_lines(source) for file, source in long.items()}
    faultless(f"{file} has {count} lines of code" for file, count in lines.items() if count > MAX_CODE_LINES)


def code_lines(source: str) -> int:
    """Counts lines of code: lines that are not blank, no comment, and no part of a docstring."""
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


def test_a_packages_init_holds_only_its_rule() -> None:
    files = [file for file in SOURCES if file.name == "__init__.py" and file.parent not in PUBLIC_PACKAGES]
    faultless(
        f"{file} holds more than its docstring, or no docstring"
        for file in files
        if len(tree(file).body) != 1 or not ast.get_docstring(tree(file))
    )


def test_every_error_has_its_own_row_on_both_wires() -> None:
    # Each error class needs an entry of its own: an entry of its base class does not count.
    faultless(f"{cls.__name__} has no status of HTTP" for cls in leaves() if not 400 <= HTTP_STATUS.get(cls, 0) < 600)
    faultless(
        f"{cls.__name__} has no code of gRPC"
        for cls in leaves()
        if STATUS_CODES[cls.code] is not grpc.StatusCode[cls.code]
    )


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


# Modules that are imported one row after the other in one process, and the beginnings of names of modules that none of
# them brings.
LIGHT = {
    "embedding_client": "service tensorflow google.protobuf orjson grpc httpx",
    "service.process.app service.process.cli service.artifact.tpu_lowering": (
        "tensorflow opentelemetry.sdk tf_keras keras model_export"
    ),
    # The package imports the module of a public name only when the name is used.
    "model_export": "model_export.",
    "model_export.commands model_export.spec.embedding_config_spec model_export.statistics.files": (
        "tensorflow tf_keras"
    ),
}


@pytest.mark.slow
def test_what_needs_no_tensorflow_and_no_server_imports_neither() -> None:
    code = (
        "import importlib, sys\n"
        f"for names, heavy in {LIGHT!r}.items():\n"
        "    for name in names.split():\n"
        "        importlib.import_module(name)\n"
        "    found = [name for name in sys.modules if name.startswith(tuple(heavy.split()))]\n"
        "    assert not found, f'{names} bring {found}'\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def rust_files() -> dict[Path, str]:
    return {file.relative_to(ROOT / RUST): file.read_text() for file in (ROOT / RUST).rglob("*.rs")}


def rust_arrows(sources: dict[Path, str]) -> Iterator[str]:
    """Yields each use of a folder or file of the core that the table does not allow."""
    for file, used in sorted(rust_sources.uses(sources).items()):
        folder = file.parts[0]
        for other in sorted(used):
            if other.parts[0] not in RUST_MAY_USE[folder] | {folder}:
                yield f"{RUST / file} uses {RUST / other}"


def rust_circles(sources: dict[Path, str]) -> list[list[Path]]:
    """Returns the circles of files of the core, apart from tests: a file's own tests use it, and it may use theirs."""
    tests = rust_sources.test_files(sources)
    return rust_sources.circles(
        {file: used - tests for file, used in rust_sources.uses(sources).items() if file not in tests}
    )


def test_the_table_of_the_core_has_an_order() -> None:
    assert set(RUST_MAY_USE) == {file.parts[0] for file in rust_files()}
    folders = list(RUST_MAY_USE)
    faultless(
        f"{folder} names {other}, which is not above it"
        for index, (folder, may_use) in enumerate(RUST_MAY_USE.items())
        for other in may_use - set(folders[:index])
    )


def test_each_folder_of_the_core_uses_only_what_its_row_allows() -> None:
    sources = rust_files()
    faultless(rust_arrows(sources))
    used = rust_sources.uses(sources)
    faultless(
        f"{folder} may use {other}, but does not"
        for folder, may_use in RUST_MAY_USE.items()
        for other in may_use
        if not any(file.parts[0] == folder and other in {one.parts[0] for one in used[file]} for file in used)
    )


def test_no_files_of_the_core_use_each_other_in_a_circle() -> None:
    faultless(" -> ".join(map(str, circle)) for circle in rust_circles(rust_files()))


@pytest.mark.parametrize(
    "planted",
    [
        "use crate::edge::Limits;",
        "pub use crate::edge::Limits;",
        "use crate::{edge, tables};",
        "fn f() { crate::edge::server_config(); }",
        "#[cfg(test)]\nmod tests {\n    use super::super::super::edge::{Access, Limits as L};\n}",
        "use crate::{\n    forms as _,\n    edge::{self as e, Config},\n};",
        "// it's\nfn f<'a>(x: &'a str) { x == \"{\"; '\"'; crate::edge::Server::start(); '\"'; }",
    ],
)
def test_a_planted_use_of_a_higher_folder_is_found(planted: str) -> None:
    sources = rust_files()
    file = Path("tables/gather.rs")
    sources[file] += planted
    assert any(" uses native/src/edge/" in arrow for arrow in rust_arrows(sources)), list(rust_arrows(sources))


@pytest.mark.parametrize("planted", ["// crate::edge::Limits", 'const A: &str = "crate::edge::Limits";'])
def test_text_about_a_higher_folder_is_no_use(planted: str) -> None:
    sources = rust_files()
    sources[Path("tables/gather.rs")] += planted
    assert not list(rust_arrows(sources))


def test_a_planted_circle_is_found() -> None:
    sources = rust_files()
    # features.rs uses servable.rs; the name leads there by way of what plan/mod.rs passes on.
    sources[Path("plan/servable.rs")] += "fn f(_: &super::Features) {}"
    found = rust_circles(sources)
    assert len(found) == 1 and {Path("plan/features.rs"), Path("plan/servable.rs")} <= set(found[0])


def test_server_and_client_have_one_version() -> None:
    server = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    client = re.search(r'^__version__ = "(.+)"$', (ROOT / "client/src/embedding_client/__init__.py").read_text(), re.M)
    assert client and client[1] == server
    assert "version" not in tomllib.loads((ROOT / "native/Cargo.toml").read_text())["package"]
