"""The objects in examples/kubernetes agree with one another, and a real server works as they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.configuration.settings import Settings
from service.configuration.settings_reading import read_settings
from service.versions.model_config import ModelConfig, Specific
from service.wire.config_protos import parse_config_text
from tests.exposition import read_exposition
from tests.integration.conftest import Serve
from tests.integration.process import ROOT, until

kubernetes = pytest.importorskip(
    "tests.kubernetes_files", reason="kubernetes-validate is not installed", exc_type=ImportError
)
schemas = pytest.importorskip("tests.kubernetes_schemas", exc_type=ImportError)
FOLDER: Path = kubernetes.FOLDER
OVERLAYS = FOLDER / "overlays"
# `kubectl kustomize` has kustomize built in, often an older version, so the program kustomize is preferred.
KUSTOMIZE = next((name for name in ("kustomize build", "kubectl kustomize") if shutil.which(name.split()[0])), "")
with_kustomize = pytest.mark.skipif(not KUSTOMIZE, reason="neither kustomize nor kubectl is installed")
Objects = dict[tuple[str, str], Any]


@cache
def objects_of(source: str) -> Objects:
    """Returns the objects of an overlay that the tests can build without kustomize."""
    found: Objects = kubernetes.built(OVERLAYS / source)
    return found


@cache
def kustomized(source: str) -> Objects:
    """Returns the objects of an overlay, built by kustomize."""
    command = [*KUSTOMIZE.split(), str(OVERLAYS / source)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: Objects = kubernetes.by_name(list(yaml.safe_load_all(text)))
    return found


def container(objects: Objects, name: str = "embedding-server") -> Any:
    (found,) = objects["Deployment", name]["spec"]["template"]["spec"]["containers"]
    return found


def variables(of: Any) -> dict[str, str]:
    return {one["name"]: one["value"] for one in of["env"]}


def settings(of: Any) -> Settings:
    """Returns the settings that a container gets from its environment variables and from the image's."""
    return read_settings([], variables(of) | {"EMB_MODEL_BASE_PATH": "/models/movielens"})


def runtime() -> Any:
    """Returns KServe's runtime."""
    (document,) = kubernetes.read(FOLDER / "kserve" / "serving-runtime.yaml")
    return document


def mounted_models(objects: Objects, release: str) -> list[ModelConfig]:
    """Returns the list of models in the ConfigMap that the release's Deployment mounts."""
    volumes = objects["Deployment", release]["spec"]["template"]["spec"]["volumes"]
    (name,) = (volume["configMap"]["name"] for volume in volumes if "configMap" in volume)
    return parse_config_text(objects["ConfigMap", name]["data"]["models.conf"], "models.conf")


def agree(objects: Objects, name: str) -> None:
    """Fails unless the objects of one release name each other, its pods and its ports."""
    deployment = objects["Deployment", name]
    pod = deployment["spec"]["template"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/name": "embedding-server", "app.kubernetes.io/instance": name}
    server = container(objects, name)
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"grpc": settings(server).port, "http": settings(server).rest_api_port}
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    spread = {one["topologyKey"]: one["labelSelector"]["matchLabels"] for one in pod["topologySpreadConstraints"]}
    assert spread == {"kubernetes.io/hostname": labels, "topology.kubernetes.io/zone": labels}
    policy = objects["NetworkPolicy", name]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"embedding-server-client": "true"}}}]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == set(ports)
    assert objects["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
    if ("PodMonitor", name) in objects:
        monitor = objects["PodMonitor", name]["spec"]
        assert monitor["selector"]["matchLabels"] == labels
        assert monitor["jobLabel"] in labels
        assert [end["port"] for end in monitor["podMetricsEndpoints"]] == ["http"]
    for service in (name, name.replace("embedding-server", "embedding-server-replicas", 1)):
        spec = objects["Service", service]["spec"]
        assert spec["selector"] == labels
        assert all(ports[port["targetPort"]] == port["port"] for port in spec["ports"])
    target = objects["HorizontalPodAutoscaler", name]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", name)
    mounted = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    config = objects["ConfigMap", volumes["config"]["configMap"]["name"]]["data"]
    assert variables(server)["EMB_MODEL_CONFIG_FILE"] in {f"{mounted['config']}/{file}" for file in config}
    paths = [model.base_path for model in mounted_models(objects, name)]
    if "models" in volumes:
        assert ("PersistentVolumeClaim", volumes["models"]["persistentVolumeClaim"]["claimName"]) in objects
        assert all(path.startswith(f"{mounted['models']}/") for path in paths)
    else:
        assert ("ServiceAccount", pod["serviceAccountName"]) in objects
        assert variables(server)["EMB_STORE_CACHE_DIR"] == mounted["cache"]
        assert all(path.startswith("s3://") for path in paths)
        assert 443 in {port["port"] for rule in policy["egress"] for port in rule["ports"]}


@pytest.mark.parametrize("source", ["volume", "bucket"])
def test_the_objects_name_each_other(source: str) -> None:
    agree(objects_of(source), "embedding-server")


@with_kustomize
@pytest.mark.parametrize("source", ["volume", "bucket"])
def test_kustomize_builds_the_same(source: str) -> None:
    built = kustomized(source)
    agree(built, "embedding-server")
    image = container(built)["image"]
    assert image == "registry.example/embedding-server:1"
    expected = objects_of(source)
    assert built.keys() == expected.keys()
    for name, one in expected.items():
        # kustomize puts items that a patch adds at the front of a list, so lists are compared without their order.
        text = json.dumps(one).replace("embedding-server:full", image)
        assert kubernetes.ordered(built[name]) == kubernetes.ordered(json.loads(text)), name


@with_kustomize
def test_the_canary_is_a_release_of_its_own() -> None:
    objects = kustomized("canary")
    for version in (schemas.OLDEST, schemas.NEWEST):
        assert {name: found for name, one in objects.items() if (found := schemas.object_faults(one, version))} == {}
    stable, canary = "embedding-server-stable", "embedding-server-canary"
    # The canary has the service account of the stable release.
    for release in (stable, canary):
        agree(objects, release)
        assert objects["Deployment", release]["spec"]["template"]["spec"]["serviceAccountName"] == stable
    assert container(objects, stable)["image"] != container(objects, canary)["image"]
    # Each release mounts its own list of models. Kustomize resolves the reference, so follow it to its content.
    (first,), (second,) = (mounted_models(objects, release) for release in (stable, canary))
    assert first.base_path == second.base_path
    assert (first.policy, second.policy) == (Specific(frozenset({1})), Specific(frozenset({2})))
    hosts = set()
    for kind, port in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
        spec = objects[kind, "embedding-server"]["spec"]
        hosts.update(spec["hostnames"])
        forced, weighted = spec["rules"]
        assert [to["name"] for to in forced["backendRefs"]] == [canary]
        assert {to["name"]: to["weight"] for to in weighted["backendRefs"]} == {stable: 90, canary: 10}
        for to in [*forced["backendRefs"], *weighted["backendRefs"]]:
            ports = {one["port"]: one["name"] for one in objects["Service", to["name"]]["spec"]["ports"]}
            assert ports[to["port"]] == port
    assert len(hosts) == 2


def test_the_pod_has_the_images_user_and_time_to_drain() -> None:
    pod = objects_of("volume")["Deployment", "embedding-server"]["spec"]["template"]["spec"]
    (user,) = set(re.findall(r"^USER (\d+):\1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    security = pod["securityContext"]
    assert {security[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    server = container(objects_of("volume"))
    ready = server["readinessProbe"]
    # At shutdown, the server waits up to the drain timeout twice: for requests, and then for loads.
    needed_s = settings(server).shutdown_delay_s + 2 * settings(server).drain_timeout_s
    assert needed_s < pod["terminationGracePeriodSeconds"]
    assert ready["periodSeconds"] * ready["failureThreshold"] <= settings(server).shutdown_delay_s


def test_a_server_with_these_settings_answers_the_probes(serve: Serve, base: Path, tmp_path: Path) -> None:
    objects = objects_of("volume")
    config = tmp_path / "models.conf"
    text = objects["ConfigMap", "embedding-server-models"]["data"]["models.conf"]
    config.write_text(text.replace("/models/movielens", str(base)))
    names = {name.removeprefix("EMB_").lower(): value for name, value in variables(container(objects)).items()}
    server = serve(**(names | {"model_base_path": "", "model_config_file": config})).answering()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container(objects)[probe]["httpGet"]
        assert asked["port"] == "http"
        until(lambda path=asked["path"]: server.http.get(path).status_code == 200)
    assert server.lookup({"user": [4]}, model="movielens") == {"user": [[4, 40]]}
    # The metrics that the PodMonitor scrapes have the series from which Prometheus' adapter makes the autoscaler's
    # metric.
    monitor = objects_of("bucket")["PodMonitor", "embedding-server"]["spec"]["podMetricsEndpoints"][0]
    found = read_exposition(server.http.get(monitor["path"]).text)
    (rule,) = kubernetes.read(FOLDER / "components/prometheus/adapter-values.yaml")[0]["rules"]["custom"]
    assert rule["seriesQuery"].partition("{")[0].removesuffix("_sum") in found


def test_kserves_runtime_has_the_settings_of_the_deployment() -> None:
    spec, server = runtime()["spec"], container(objects_of("volume"))
    (runs,) = spec["containers"]
    assert runs["name"] == "kserve-container"
    for name in ("startupProbe", "readinessProbe", "livenessProbe", "resources"):
        assert runs[name] == server[name]
    shared = {name: value for name, value in variables(server).items() if "CONFIG" not in name}
    assert variables(runs) == shared
    pod = objects_of("volume")["Deployment", "embedding-server"]["spec"]["template"]["spec"]
    user = {name: value for name, value in pod["securityContext"].items() if name != "fsGroup"}
    assert runs["securityContext"] == server["securityContext"] | user
    (volume,) = spec["volumes"]
    assert volume in pod["volumes"]
    assert runs["volumeMounts"] == [{"name": volume["name"], "mountPath": "/tmp"}]
    (service,) = kubernetes.read(FOLDER / "kserve" / "inference-service.yaml")
    # The schema does not check annotations, so the test compares this one.
    assert service["metadata"]["annotations"] == {"serving.kserve.io/deploymentMode": "Standard"}
    predictor = service["spec"]["predictor"]
    assert predictor["model"]["runtime"] == runtime()["metadata"]["name"]
    formats = [(one["name"], one["version"]) for one in spec["supportedModelFormats"]]
    assert (predictor["model"]["modelFormat"]["name"], predictor["model"]["modelFormat"]["version"]) in formats
    assert predictor["model"]["protocolVersion"] in spec["protocolVersions"]
    assert set(spec["protocolVersions"]) == {"v1", "v2", "grpc-v1", "grpc-v2"}
    config = objects_of("bucket")["ConfigMap", "embedding-server-models"]["data"]["models.conf"]
    assert [predictor["model"]["storageUri"]] == [one.base_path for one in parse_config_text(config, "models.conf")]
    assert predictor["terminationGracePeriodSeconds"] == pod["terminationGracePeriodSeconds"]
    assert predictor["enableServiceLinks"] is pod["enableServiceLinks"] is False
    assert predictor["securityContext"] == {"fsGroup": pod["securityContext"]["fsGroup"]}
    scaling = objects_of("volume")["HorizontalPodAutoscaler", "embedding-server"]["spec"]
    assert [predictor[name] for name in ("minReplicas", "maxReplicas")] == [
        scaling["minReplicas"],
        scaling["maxReplicas"],
    ]
    assert predictor["scaleMetric"] == scaling["metrics"][0]["resource"]["name"]
    assert predictor["scaleTarget"] == scaling["metrics"][0]["resource"]["target"]["averageUtilization"]


def test_a_server_with_kserves_arguments_answers(serve: Serve, base: Path) -> None:
    (runs,) = runtime()["spec"]["containers"]
    given = dict(argument.removeprefix("--").split("=") for argument in runs["args"])
    ports = {port["name"]: port["containerPort"] for port in runs["ports"]}
    assert {port["protocol"] for port in runs["ports"]} == {"TCP"}
    assert (int(given["rest_api_port"]), int(given["port"])) == (ports["http"], ports["h2c"])
    assert runtime()["spec"]["annotations"]["prometheus.kserve.io/port"] == given["rest_api_port"]
    (service,) = kubernetes.read(FOLDER / "kserve" / "inference-service.yaml")
    # KServe replaces {{.Name}} by the name of the InferenceService, and puts the versions below /mnt/models.
    assert (given["model_name"], given["model_base_path"]) == ("{{.Name}}", "/mnt/models")
    model = service["metadata"]["name"]
    names = {name.removeprefix("EMB_").lower(): value for name, value in variables(runs).items()}
    server = serve(**names, model_name=model, model_base_path=base).answering()
    for path in ("/readyz", runtime()["spec"]["annotations"]["prometheus.kserve.io/path"]):
        until(lambda path=path: server.http.get(path).status_code == 200)
    # The server answers a request of protocol v1 and one of protocol v2.
    for path in (f"/v1/models/{model}", f"/v2/models/{model}/ready"):
        assert server.http.get(path).status_code == 200
