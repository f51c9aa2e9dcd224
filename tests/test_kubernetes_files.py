"""Each file in examples/kubernetes has only fields and names that exist, and a typo in any of them is found."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest

kubernetes = pytest.importorskip(
    "tests.kubernetes_files", reason="kubernetes-validate is not installed", exc_type=ImportError
)
schemas = pytest.importorskip("tests.kubernetes_schemas", exc_type=ImportError)
Draft7Validator = pytest.importorskip("jsonschema").Draft7Validator
FILES, FOLDER, faults, read = kubernetes.FILES, kubernetes.FOLDER, kubernetes.faults, kubernetes.read
# Keys of a kustomization whose texts a user may choose: names and tags of images, the suffix and the labels of the
# canary.
OWN_TEXTS = {"newName", "newTag", "nameSuffix", "pairs"}


def shown(file: Path) -> str:
    return str(file.relative_to(FOLDER))


@pytest.mark.parametrize("file", FILES, ids=shown)
def test_a_file_has_no_fault(file: Path) -> None:
    assert faults(file, read(file)) == []


@pytest.mark.parametrize("file", FILES, ids=shown)
def test_a_misspelt_field_is_found(file: Path) -> None:
    tried = 0
    documents = read(file)
    for place, document in enumerate(documents):
        for path, changed in schemas.misspelt(copy.deepcopy(document)):
            tried += 1
            found = faults(file, [*documents[:place], changed, *documents[place + 1 :]])
            assert found, f"{shown(file)}: {'.'.join(path)} misspelt passes"
    assert tried > 1


def misspelt_texts(node: Any) -> Iterator[Any]:
    """Yields each map below a node with one text changed that is not the user's own."""
    if isinstance(node, str):
        yield f"{node}x"
    elif isinstance(node, list):
        for place, item in enumerate(node):
            yield from ([*node[:place], changed, *node[place + 1 :]] for changed in misspelt_texts(item))
    elif isinstance(node, dict):
        for key, value in node.items():
            if key not in OWN_TEXTS:
                yield from ({**node, key: changed} for changed in misspelt_texts(value))


@pytest.mark.parametrize("file", [file for file in FILES if file.name == "kustomization.yaml"], ids=shown)
def test_a_misspelt_name_in_a_kustomization_is_found(file: Path) -> None:
    (document,) = read(file)
    for changed in misspelt_texts(document):
        assert faults(file, [changed]), f"{shown(file)} passes as {changed}"


@pytest.mark.parametrize("file", [file for file in FILES if isinstance(read(file)[0], list)], ids=shown)
def test_a_misspelt_path_in_a_patch_is_found(file: Path) -> None:
    (changes,) = read(file)
    for place, change in enumerate(changes):
        parts = change["path"].split("/")
        for part in range(1, len(parts)):
            path = "/".join([*parts[:part], f"{parts[part]}x", *parts[part + 1 :]])
            assert faults(file, [[*changes[:place], {**change, "path": path}, *changes[place + 1 :]]]), path


def is_strict(schema: Any) -> bool:
    """Says whether a schema accepts the chart's values, has only known keywords, and refuses misspelt names."""
    # JSON schema ignores unknown keywords; here, an unknown keyword makes the schema not strict.
    words = Draft7Validator(Draft7Validator.META_SCHEMA | {"additionalProperties": False})
    if not words.is_valid(schema):
        return False
    (values,) = read(kubernetes.CHART / "values.yaml")
    validator = Draft7Validator(schema)
    # Helm adds a key `global` to the values of a chart that another chart contains.
    return validator.is_valid(values | {"global": {}}) and not any(
        validator.is_valid(changed) for _, changed in schemas.misspelt(values)
    )


def test_a_misspelt_word_in_the_schema_of_the_values_is_found() -> None:
    schema = json.loads((kubernetes.CHART / "values.schema.json").read_text())
    assert is_strict(schema)
    for path, changed in schemas.misspelt(schema):
        assert not is_strict(changed), f"{'.'.join(path)} misspelt passes"


@pytest.mark.parametrize("version", [schemas.OLDEST, schemas.NEWEST])
def test_two_versions_of_kubernetes_know_every_field(version: str) -> None:
    objects = {
        **kubernetes.known_objects(FOLDER / "overlays" / "volume"),
        **kubernetes.known_objects(FOLDER / "overlays" / "bucket"),
        **kubernetes.known_objects(FOLDER / "overlays" / "canary"),
    }
    assert len(objects) == 12
    assert {name: found for name, one in objects.items() if (found := schemas.object_faults(one, version))} == {}


def test_the_adapters_rule_makes_the_autoscalers_metric() -> None:
    component = FOLDER / "components" / "prometheus"
    (rule,) = read(component / "adapter-values.yaml")[0]["rules"]["custom"]
    ((change,),) = read(component / "autoscaler.yaml")
    assert rule["name"]["as"] == change["value"]["pods"]["metric"]["name"]
    series = re.sub(r"\{.*", "", rule["seriesQuery"])
    query = rule["metricsQuery"]
    for placeholder, text in {"GroupBy": "pod", "Series": series, "LabelMatchers": 'pod="p"'}.items():
        assert f"<<.{placeholder}>>" in query
        query = query.replace(f"<<.{placeholder}>>", text)
    promql_parser.parse(query)
    promql_parser.parse(rule["seriesQuery"])
