"""The Kubernetes manifests: each field is one that Kubernetes knows, and a real server works as they say."""

from __future__ import annotations

import copy
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.configuration.settings import Settings
from service.configuration.settings_reading import read_settings
from service.wire.model_config_proto import parse_config_text
from tests.integration.conftest import Serve
from tests.integration.process import ROOT, until

FOLDER = ROOT / "examples" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
# Maps whose keys are the user's own.
FREE = {"labels", "matchLabels", "annotations", "selector", "data", "requests", "limits"}
validated = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed"
)


@cache
def documents() -> dict[tuple[str, str], Any]:
    """Returns all objects, by kind and name."""
    found = [document for file in FILES for document in yaml.safe_load_all(file.read_text())]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def container() -> Any:
    (found,) = documents()["Deployment", "embedding-server"]["spec"]["template"]["spec"]["containers"]
    return found


def variables() -> dict[str, str]:
    return {one["name"]: one["value"] for one in container()["env"]}


def settings() -> Settings:
    return read_settings([], variables() | {"EMB_MODEL_BASE_PATH": "/models/movielens"})


@cache
def schema_reader() -> Any:
    """Returns kubernetes-validate with schemas that are read once: it parses them anew for each object."""
    import kubernetes_validate
    from kubernetes_validate import utils

    utils.schema_contents = cache(utils.schema_contents)
    return kubernetes_validate


def is_valid(document: Any, version: str) -> bool:
    """Says whether a version of Kubernetes takes an object, and knows each of its fields."""
    reader = schema_reader()
    try:
        reader.validate(document, version, strict=True)
    except (reader.ValidationError, reader.SchemaNotFoundError, KeyError):
        # KeyError: there is no kind, or no apiVersion.
        return False
    return True


@validated
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_knows_every_field(version: str) -> None:
    assert len(documents()) == 8
    assert [name for name, document in documents().items() if not is_valid(document, version)] == []


def misspelt(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields each map below a node with one key changed, with the path of that key."""
    if isinstance(node, list):
        for place, item in enumerate(node):
            for where, changed in misspelt(item, (*path, str(place))):
                yield where, [*node[:place], changed, *node[place + 1 :]]
    if isinstance(node, dict):
        for key, value in node.items():
            rest = {name: other for name, other in node.items() if name != key}
            if not FREE & set(path):
                yield (*path, key), {**rest, f"{key}x": value}
            for where, changed in misspelt(value, (*path, key)):
                yield where, {**node, key: changed}


@validated
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_misspelt_field_is_found(file: Path) -> None:
    tried = 0
    for document in yaml.safe_load_all(file.read_text()):
        for path, changed in misspelt(copy.deepcopy(document)):
            tried += 1
            assert not is_valid(changed, "1.37"), f"{file.name}: {'.'.join(path)} misspelt passes"
    assert tried > 4


def test_the_objects_name_each_other() -> None:
    all_of = documents()
    deployment = all_of["Deployment", "embedding-server"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {"grpc": settings().port, "http": settings().rest_api_port}
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        spec = all_of[kind, "embedding-server"]["spec"]
        assert (spec.get("selector") or spec["podSelector"])["matchLabels"] == labels
    for name in ("embedding-server", "embedding-server-replicas"):
        spec = all_of["Service", name]["spec"]
        assert spec["selector"] == labels
        assert all(ports[port["targetPort"]] == port["port"] for port in spec["ports"])
    rules = all_of["NetworkPolicy", "embedding-server"]["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == set(ports)
    target = all_of["HorizontalPodAutoscaler", "embedding-server"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) in all_of
    mounted = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    for volume in deployment["spec"]["template"]["spec"]["volumes"]:
        assert volume["name"] in mounted
        if "configMap" in volume:
            config = all_of["ConfigMap", volume["configMap"]["name"]]
            paths = {f"{mounted[volume['name']]}/{name}" for name in config["data"]}
            assert variables()["EMB_MODEL_CONFIG_FILE"] in paths
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in all_of
            assert all(model.base_path.startswith(mounted[volume["name"]]) for model in models())


def models() -> Any:
    text = documents()["ConfigMap", "embedding-server-models"]["data"]["models.conf"]
    return parse_config_text(text, "models.conf")


def test_the_pod_has_the_images_user_and_time_to_drain() -> None:
    pod = documents()["Deployment", "embedding-server"]["spec"]["template"]["spec"]
    (user,) = set(re.findall(r"^USER (\d+):\1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    security = pod["securityContext"]
    assert {security[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    ready = container()["readinessProbe"]
    # Each of the two waits for requests, and for loads, is as long as the drain timeout.
    needed_s = settings().shutdown_delay_s + 2 * settings().drain_timeout_s
    assert needed_s < pod["terminationGracePeriodSeconds"]
    assert ready["periodSeconds"] * ready["failureThreshold"] <= settings().shutdown_delay_s


def test_a_server_with_these_settings_answers_the_probes(serve: Serve, base: Path, tmp_path: Path) -> None:
    config = tmp_path / "models.conf"
    text = documents()["ConfigMap", "embedding-server-models"]["data"]["models.conf"]
    config.write_text(text.replace("/models/movielens", str(base)))
    names = {name.removeprefix("EMB_").lower(): value for name, value in variables().items()}
    server = serve(**(names | {"model_base_path": "", "model_config_file": config})).answering()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container()[probe]["httpGet"]
        assert asked["port"] == "http"
        until(lambda path=asked["path"]: server.http.get(path).status_code == 200)
    assert server.lookup({"user": [4]}, model="movielens") == {"user": [[4, 40]]}
