"""Reads the objects of examples/kubernetes and finds the faults of each file, without kustomize or a cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.kubernetes_schemas import OLDEST, file_faults, object_faults, patched

FOLDER = Path(__file__).parents[1] / "examples" / "kubernetes"
BASE, CHART = FOLDER / "base", FOLDER / "chart"
# Helm templates are not valid YAML, so they are left out; tests/test_helm_chart.py renders and checks them.
FILES = sorted(file for file in FOLDER.rglob("*.yaml") if file.parent.name != "templates")
Objects = dict[tuple[str, str], Any]
# Renders for the oldest supported version of Kubernetes; without --kube-version, some builds of Helm take 1.20.
HELM = ["helm", "template", "embedding-server", str(CHART), "--kube-version", OLDEST]


def read(file: Path) -> list[Any]:
    return list(yaml.safe_load_all(file.read_text()))


def by_name(documents: list[Any]) -> Objects:
    """Returns objects by kind and name, and checks that no two share both."""
    found = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(found) == len(documents), "two objects of one name"
    return found


def rendered(values: Mapping[str, Any]) -> Objects:
    """Renders the chart with Helm, which also checks the values; skips the test where Helm is not installed."""
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed")
    return by_name([document for document in yaml.safe_load_all(_text(json.dumps(values))) if document is not None])


@cache
def _text(values: str) -> str:
    done = subprocess.run([*HELM, "--values=-"], input=values, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def known_objects(folder: Path) -> Objects:
    """Returns the objects of a kustomization before its patches, by kind and name."""
    found: Objects = {}
    (about,) = read(folder / "kustomization.yaml")
    if about["kind"] == "Component":
        found |= known_objects(BASE)
    for name in [*about.get("resources", []), *about.get("components", [])]:
        place = (folder / name).resolve()
        found |= known_objects(place) if place.is_dir() else by_name(read(place))
    return found


def built(folder: Path) -> Objects:
    """Returns the objects of an overlay after the patches of its components, without new names of images.

    An overlay that changes names or labels needs kustomize itself. Where kustomize or kubectl is installed, a test
    compares both results.
    """
    (about,) = read(folder / "kustomization.yaml")
    assert about.keys() <= {"apiVersion", "kind", "resources", "components", "images"}
    objects = dict(known_objects(folder))
    for component in (folder / name for name in about["components"]):
        for patch in read(component / "kustomization.yaml")[0]["patches"]:
            (content,) = read(component / patch["path"])
            if isinstance(content, list):
                name = patch["target"]["kind"], patch["target"]["name"]
                objects[name] = patched(objects[name], content)
            else:
                name = content["kind"], content["metadata"]["name"]
                objects[name] = _extended(objects[name], content)
    return objects


def _extended(document: Any, patch: Any) -> Any:
    """Returns an object after a patch that adds to lists; only containers are changed, and found by their names."""
    if isinstance(document, dict) and isinstance(patch, dict):
        return document | {name: _extended(document.get(name), value) for name, value in patch.items()}
    if isinstance(document, list) and isinstance(patch, list):
        if len(document) == len(patch) == 1 and document[0].get("name", "") == patch[0].get("name"):
            return [_extended(document[0], patch[0])]
        return [*document, *patch]
    return patch


def ordered(node: Any) -> Any:
    """Returns a node with each of its lists sorted: their order means nothing in the objects that tests compare."""
    if isinstance(node, dict):
        return {name: ordered(value) for name, value in node.items()}
    if isinstance(node, list):
        return sorted((ordered(item) for item in node), key=lambda item: json.dumps(item, sort_keys=True))
    return node


def faults(file: Path, documents: list[Any]) -> list[str]:
    """Returns the faults in the documents of a file of examples/kubernetes."""
    try:
        return list(_checks_of(file)(file, documents))
    except (AttributeError, KeyError, LookupError, TypeError, ValueError, OSError) as error:
        # The checks below rely on the form that a correct file has.
        return [repr(error)]


def _checks_of(file: Path) -> Callable[[Path, list[Any]], Iterator[str]]:
    named = {"kustomization.yaml": _of_kustomization, "adapter-values.yaml": _of_adapter_values}
    if file.parent == CHART:
        return {"Chart.yaml": _of_chart, "values.yaml": _of_values}[file.name]
    if file in _patches():
        return _of_patch
    return named.get(file.name, _of_objects)


@cache
def _patches() -> dict[Path, tuple[Path, dict[str, str]]]:
    """Returns each patch of the kustomizations -> the folder of its kustomization, and the target that it names."""
    return {
        (folder / patch["path"]).resolve(): (folder, patch.get("target", {}))
        for folder in (file.parent for file in FILES if file.name == "kustomization.yaml")
        for patch in read(folder / "kustomization.yaml")[0].get("patches", [])
    }


def _of_objects(file: Path, documents: list[Any]) -> Iterator[str]:
    for document in documents:
        yield from object_faults(document)


def _of_adapter_values(file: Path, documents: list[Any]) -> Iterator[str]:
    yield from file_faults("adapter-values", documents[0])


def _of_chart(file: Path, documents: list[Any]) -> Iterator[str]:
    yield from file_faults("chart", documents[0])


def _of_values(file: Path, documents: list[Any]) -> Iterator[str]:
    schema = json.loads((CHART / "values.schema.json").read_text())
    yield from (error.message for error in Draft7Validator(schema).iter_errors(documents[0]))


def _of_patch(file: Path, documents: list[Any]) -> Iterator[str]:
    folder, target = _patches()[file]
    (patch,) = documents
    objects = known_objects(folder)
    if isinstance(patch, list):
        yield from file_faults("json-patch", patch)
        yield from object_faults(patched(objects[target["kind"], target["name"]], patch))
        return
    patch = dict(patch)
    if patch.pop("$patch", "delete") != "delete":
        yield "$patch has an unknown value"
    yield from object_faults(patch, partial=True)
    # A patch with a misspelt container name would add a container, and change none.
    unpatched = objects[patch["kind"], patch["metadata"]["name"]]
    yield from (f"no container {name}" for name in _containers(patch) - _containers(unpatched))


def _containers(document: Any) -> set[str]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    return {container["name"] for container in pod.get("containers", [])}


def _of_kustomization(file: Path, documents: list[Any]) -> Iterator[str]:
    (about,) = documents
    folder = file.parent
    yield from file_faults("kustomization", about)
    for name in about.get("resources", []):
        place = folder / name
        if not place.is_file() and not (place / "kustomization.yaml").is_file():
            yield f"no resource {name}"
    for name in about.get("components", []):
        if read(folder / name / "kustomization.yaml")[0]["kind"] != "Component":
            yield f"{name} is no component"
    objects = known_objects(folder)
    for patch in about.get("patches", []):
        (content,) = read(folder / patch["path"])
        if isinstance(content, list) != ("target" in patch):
            yield f"{patch['path']}: a list of changes, and no other patch, needs a target"
        if "target" in patch and (patch["target"]["kind"], patch["target"]["name"]) not in objects:
            yield f"no object {patch['target']}"
    for labels in about.get("labels", []):
        for field in labels["fields"]:
            of_kind = [document for (kind, _), document in objects.items() if kind == field["kind"]]
            values = [value for document in of_kind for value in _at(document, field["path"])]
            if not values or not all(labels["pairs"].keys() <= value.keys() for value in values):
                yield f"{field} has no such label"
    images = {"embedding-server", *_new_images()}
    yield from (f"no image {image['name']}" for image in about.get("images", []) if image["name"] not in images)


@cache
def _new_images() -> set[str]:
    """Returns the names that kustomizations give to images."""
    lists = [read(file)[0].get("images", []) for file in FILES if file.name == "kustomization.yaml"]
    return {image["newName"] for images in lists for image in images if "newName" in image}


def _at(document: Any, path: str) -> list[Any]:
    """Returns the values at a path such as spec/selector; in a list, the path continues in each item."""
    found = [document]
    for part in path.split("/"):
        found = [item[part] for node in found for item in (node if isinstance(node, list) else [node])]
    return found
