"""Set-ups that people run: each can be rendered, has only known fields, and each reference leads somewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.configuration.settings_reading import read_settings
from service.errors import ServiceError
from service.remote.address import remote_tables
from service.wire.config_protos import parse_config_text

kubernetes = pytest.importorskip(
    "tests.kubernetes_files", reason="kubernetes-validate is not installed", exc_type=ImportError
)
schemas = pytest.importorskip("tests.kubernetes_schemas", exc_type=ImportError)
MODELS = 'model_config_list { config { name: "m" base_path: "%s" model_platform: "tensorflow" } }'
UNITS = {"Mi": 2**20, "Gi": 2**30}


@dataclass(frozen=True)
class SetUp:
    """A set-up: values of the chart, or components of an overlay. secrets: what the user makes, with its keys.

    ports: TCP ports that the server must reach. releases: Services of other releases that routes name.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    secrets: Mapping[str, set[str]] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    releases: tuple[str, ...] = ()


def tcp(port: int, **to: Any) -> dict[str, Any]:
    return {"ports": [{"protocol": "TCP", "port": port}], **({"to": [to]} if to else {})}


def of_bucket(uri: str, **values: Any) -> dict[str, Any]:
    return {"source": "bucket", "models": MODELS % uri, **values}


SET_UPS = {
    "a volume": SetUp(),
    "TLS on both ports": SetUp({"tls": {"secretName": "serving-tls"}}, secrets={"serving-tls": {"ssl.conf"}}),
    "client certificates, tokens, console": SetUp(
        {
            "tls": {"secretName": "serving-tls", "key": "mutual.conf", "clientCertificates": True},
            "auth": {"secretName": "callers"},
            "consoleSecret": {"secretName": "sessions"},
        },
        secrets={"serving-tls": {"mutual.conf"}, "callers": {"auth.toml"}, "sessions": {"secret"}},
    ),
    "MinIO with keys": SetUp(
        of_bucket(
            "s3://models/m",
            bucket={"metadataService": False, "cacheGi": 20},
            env=[
                {"name": "AWS_ENDPOINT_URL", "value": "http://minio.storage:9000"},
                {"name": "AWS_ALLOW_HTTP", "value": "true"},
                {"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {"name": "minio", "key": "id"}}},
                {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "minio", "key": "key"}}},
            ],
            networkPolicy={"egress": [tcp(9000, namespaceSelector={"matchLabels": {"name": "storage"}})]},
        ),
        secrets={"minio": {"id", "key"}},
        ports=(9000,),
    ),
    "Azure with a workload identity": SetUp(
        of_bucket(
            "az://models/m",
            bucket={"serviceAccountAnnotations": {"azure.workload.identity/client-id": "0"}, "metadataService": False},
            podLabels={"azure.workload.identity/use": "true"},
            env=[{"name": "AZURE_STORAGE_ACCOUNT_NAME", "value": "models"}],
        ),
        ports=(443,),
    ),
    "GCS with large versions": SetUp(
        of_bucket(
            "gs://models/m",
            bucket={"cacheGi": 900, "serviceAccountAnnotations": {"iam.gke.io/gcp-service-account": "reader@p"}},
            nodeSelector={"cloud.google.com/gke-ephemeral-storage-local-ssd": "true"},
        ),
        ports=(443, 988),
    ),
    "remote tables with a password": SetUp(
        {
            "settings": {"EMB_REMOTE_TABLES": "user=valkeys://valkey:6380?password_file=/etc/valkey/password"},
            "extraVolumes": [{"name": "valkey", "secret": {"secretName": "valkey"}}],
            "extraVolumeMounts": [{"name": "valkey", "mountPath": "/etc/valkey", "readOnly": True}],
            "networkPolicy": {"egress": [tcp(6380)]},
        },
        secrets={"valkey": {"password"}},
        ports=(6380,),
    ),
    "traces to a collector": SetUp(
        {
            "settings": {"EMB_TRACING": "otlp"},
            "env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector.monitoring:4318"}],
            "networkPolicy": {"egress": [tcp(4318)]},
            "podMonitor": {"enabled": True},
        },
        ports=(4318,),
    ),
    "a private registry, own nodes": SetUp(
        {
            "image": {"repository": "registry.example/es", "digest": "sha256:" + "a" * 64},
            "imagePullSecrets": [{"name": "registry"}],
            "nodeSelector": {"disk": "nvme"},
            "tolerations": [{"key": "serving", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "volume": {"existingClaim": ""},
        },
        secrets={"registry": {".dockerconfigjson"}},
    ),
    "a canary behind a gateway": SetUp(
        {
            "route": {"enabled": True, "canary": {"release": "canary", "weight": 5}},
            "networkPolicy": {"gatewayNamespace": "gateways"},
        },
        releases=("canary",),
    ),
    "Kustomize: a volume, TLS, callers": SetUp(
        components=("volume", "tls", "auth"),
        secrets={"embedding-server-tls": {"ssl.conf"}, "embedding-server-auth": {"auth.toml", "console"}},
    ),
    "Kustomize: a bucket, remote tables, Prometheus, a gateway": SetUp(
        components=("bucket", "remote-tables", "prometheus", "gateway"),
        secrets={"embedding-server-valkey": {"password"}},
        ports=(443, 6379),
    ),
}


def objects_of(setup: SetUp, folder: Path) -> Any:
    """Renders a set-up; returns its objects by kind and name."""
    if not setup.components:
        return kubernetes.rendered(setup.values)
    to_examples = os.path.relpath(kubernetes.FOLDER, folder)
    about = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{to_examples}/base"],
        "components": [f"{to_examples}/components/{name}" for name in setup.components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(about))
    return kubernetes.built(folder)


def num_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def dangling(objects: Any, setup: SetUp) -> Iterator[str]:
    """Yields each reference of a set-up's objects that leads nowhere, and each limit that contradicts another."""
    template = objects["Deployment", "embedding-server"]["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    (server,) = pod["containers"]
    ports = {port["name"] for port in server["ports"]}
    variables = {one["name"]: one for one in server["env"]}
    if len(variables) != len(server["env"]):
        yield "two variables of one name"
    # Volumes and secrets.
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes.get(mount["name"]) for mount in server["volumeMounts"]}
    if {mount["name"] for mount in server["volumeMounts"]} != volumes.keys() or len(volumes) != len(pod["volumes"]):
        yield "mounts and volumes differ"
    files: dict[str, set[str]] = {}
    for path, volume in mounts.items():
        match volume:
            case {"configMap": {"name": name}}:
                files[path] = set(objects["ConfigMap", name]["data"])
            case {"secret": {"secretName": name}}:
                files[path] = setup.secrets[name]
            case {"persistentVolumeClaim": {"claimName": name}}:
                if objects["PersistentVolumeClaim", name]["spec"]["accessModes"] != ["ReadWriteMany"]:
                    yield "no job can write the volume"
    named = {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
    for one in variables.values():
        if "valueFrom" in one:
            secret = one["valueFrom"]["secretKeyRef"]
            named.add(secret["name"])
            if secret["key"] not in setup.secrets[secret["name"]]:
                yield f"secret {secret['name']} has no key {secret['key']}"
    named |= {one["name"] for one in pod.get("imagePullSecrets", [])}
    if named != setup.secrets.keys():
        yield f"secrets {named} are named, and {set(setup.secrets)} exist"
    if (account := pod.get("serviceAccountName")) and ("ServiceAccount", account) not in objects:
        yield f"no service account {account}"
    # Settings: known to the server, and each path that they name is mounted.
    own = {name: one["value"] for name, one in variables.items() if name.startswith("EMB_")}
    try:
        settings = read_settings([], own | {"EMB_MODEL_BASE_PATH": "/models/m"})
    except ServiceError as error:
        yield str(error)
        return
    paths = re.findall(r"(?:^|=)(/[\w./-]+)", "\n".join(own.values()), re.MULTILINE)
    for path in paths:
        folder, _, file = path.rpartition("/")
        if path not in mounts and file not in files.get(folder, ()):
            yield f"nothing is mounted at {path}"
    for model in parse_config_text(
        objects["ConfigMap", volumes["config"]["configMap"]["name"]]["data"]["models.conf"], ""
    ):
        if ("://" in model.base_path) != bool(settings.store_cache_dir):
            yield f"{model.base_path} and the cache folder do not fit"
        if "://" not in model.base_path and not any(model.base_path.startswith(f"{mount}/") for mount in mounts):
            yield f"{model.base_path} is not mounted"
    # The cache: the server's bound, the volume's, and the space that the scheduler finds.
    if settings.store_cache_dir:
        limit = num_bytes(mounts[str(settings.store_cache_dir)]["emptyDir"]["sizeLimit"])
        asked = num_bytes(server["resources"]["requests"]["ephemeral-storage"])
        if not 0 < settings.store_cache_mib * 2**20 < limit < asked:
            yield f"cache of {settings.store_cache_mib} MiB in {limit} of {asked} bytes"
    # Probes and ports.
    has_tls = bool(settings.rest_api_ssl_config_file)
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        match server[name]:
            case {"httpGet": {"port": port, **rest}}:
                if port not in ports or (rest.get("scheme") == "HTTPS") != has_tls:
                    yield f"{name} does not fit the port"
            case {"exec": _} | {"tcpSocket": {"port": "http"}} if has_tls:
                pass
            case other:
                yield f"{name} is {other}"
    for (kind, name), one in objects.items():
        spec = one.get("spec", {})
        match kind:
            case "Service":
                if not spec["selector"].items() <= labels.items() or {p["targetPort"] for p in spec["ports"]} - ports:
                    yield f"Service {name} finds no pod or port"
                protocols = {port["appProtocol"] for port in spec["ports"] if "appProtocol" in port}
                if protocols and (protocols == {"https"}) != has_tls:
                    yield f"Service {name} speaks {protocols}"
            case "NetworkPolicy":
                if not spec["podSelector"]["matchLabels"].items() <= labels.items():
                    yield "the policy is of other pods"
                ends = [port for rule in spec["egress"] for port in rule["ports"]]
                opened = {end["port"] for end in ends if end["protocol"] == "TCP"}
                remote = remote_tables(settings.remote_tables).values()
                needed = {*setup.ports, *(port for one in remote for _, port in one.nodes), 53}
                if needed - opened:
                    yield f"ports {needed - opened} are closed"
            case "PodDisruptionBudget" | "PodMonitor":
                if not spec["selector"]["matchLabels"].items() <= labels.items():
                    yield f"{kind} finds no pod"
            case "HorizontalPodAutoscaler":
                if ("Deployment", spec["scaleTargetRef"]["name"]) not in objects:
                    yield "nothing to scale"
            case "HTTPRoute" | "GRPCRoute":
                for to in (to for rule in spec["rules"] for to in rule["backendRefs"]):
                    if ("Service", to["name"]) not in objects and to["name"] not in setup.releases:
                        yield f"{kind} leads to {to['name']}"
    for spread in pod["topologySpreadConstraints"]:
        if not spread["labelSelector"]["matchLabels"].items() <= labels.items():
            yield "spreads other pods"


@pytest.mark.parametrize("name", SET_UPS)
def test_a_set_up_is_rendered_and_its_references_lead_somewhere(name: str, tmp_path: Path) -> None:
    setup = SET_UPS[name]
    objects = objects_of(setup, tmp_path)
    for version in (schemas.OLDEST, schemas.NEWEST):
        assert {key: found for key, one in objects.items() if (found := schemas.object_faults(one, version))} == {}
    assert list(dangling(objects, setup)) == []
