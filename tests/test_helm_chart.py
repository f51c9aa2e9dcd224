"""Helm makes the objects of the Kustomize overlays from the chart, and they have only known fields."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml

kubernetes = pytest.importorskip(
    "tests.kubernetes_files", reason="kubernetes-validate is not installed", exc_type=ImportError
)
schemas = pytest.importorskip("tests.kubernetes_schemas", exc_type=ImportError)
CHART: Path = kubernetes.CHART
OVERLAYS: Path = kubernetes.FOLDER / "overlays"
with_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
BUCKET = {
    "source": "bucket",
    "models": yaml.safe_load((OVERLAYS.parent / "components/bucket/configmap.yaml").read_text())["data"]["models.conf"],
    "podMonitor": {"enabled": True},
    "autoscaling": {"requestsUnderWay": 4},
}
# Together, these sets of values render each line of each template of the chart.
VALUES: dict[str, dict[str, Any]] = {
    "volume": {},
    "bucket": BUCKET,
    "bucket, each option": {
        **BUCKET,
        "bucket": {"cacheGi": 9, "serviceAccountAnnotations": {"iam/role": "reader"}, "metadataService": False},
        "settings": {"EMB_MAX_QUEUE_MS": "50", "EMB_THREADS": "4"},
        "networkPolicy": {"gatewayNamespace": "gateways"},
        "route": {"enabled": True, "canary": {"release": "embedding-server-canary", "weight": 25}},
    },
    "volume, each option": {
        "volume": {"storageClassName": "shared", "size": "1Gi"},
        "image": {"repository": "registry.example/embedding-server", "tag": "2"},
        "shutdownDelayS": 20,
        "drainTimeoutS": 7,
        "route": {"enabled": True},
    },
    "volume of the user": {"volume": {"existingClaim": "theirs"}},
    "secrets": {
        "image": {"digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "tls": {"secretName": "tls"},
        "auth": {"secretName": "auth"},
        "consoleSecret": {"secretName": "console"},
        "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
        "envFrom": [{"secretRef": {"name": "store"}}],
        "extraVolumes": [{"name": "password", "secret": {"secretName": "valkey"}}],
        "extraVolumeMounts": [{"name": "password", "mountPath": "/etc/valkey", "readOnly": True}],
        "networkPolicy": {"egress": [{"ports": [{"protocol": "TCP", "port": 6379}]}]},
    },
    "client certificates, own nodes": {
        "tls": {"secretName": "tls", "clientCertificates": True},
        "podLabels": {"team": "ranking"},
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "serving", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    },
}


def without_helms_labels(objects: Any) -> Any:
    """Returns the objects with sorted lists, after removing the two labels that only Helm sets."""
    for document in objects.values():
        labels = document["metadata"]["labels"]
        assert labels.pop("app.kubernetes.io/managed-by") == "Helm"
        assert labels.pop("helm.sh/chart").startswith("embedding-server-")
    return kubernetes.ordered(objects)


@pytest.mark.parametrize("source", ["volume", "bucket"])
def test_the_chart_makes_the_objects_of_the_overlay(source: str) -> None:
    assert without_helms_labels(kubernetes.rendered(VALUES[source])) == kubernetes.ordered(
        kubernetes.built(OVERLAYS / source)
    )


def test_the_chart_routes_as_the_canary_overlay_does() -> None:
    route = {"enabled": True, "canary": {"release": "embedding-server-canary", "weight": 10}}
    objects = without_helms_labels(
        kubernetes.rendered({"route": route, "networkPolicy": {"gatewayNamespace": "gateways"}})
    )
    for document in kubernetes.read(OVERLAYS / "canary" / "routes.yaml"):
        # The chart's first release is the stable one, under its own name.
        text = json.dumps(document["spec"]).replace("embedding-server-stable", "embedding-server")
        assert objects[document["kind"], "embedding-server"]["spec"] == kubernetes.ordered(json.loads(text))
    ((change,),) = kubernetes.read(OVERLAYS.parent / "components" / "gateway" / "network-policy.yaml")
    assert kubernetes.ordered(change["value"]) in objects["NetworkPolicy", "embedding-server"]["spec"]["ingress"]


@pytest.mark.parametrize("version", [schemas.OLDEST, schemas.NEWEST])
@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_knows_every_field_that_the_chart_sets(name: str, version: str) -> None:
    objects = kubernetes.rendered(VALUES[name])
    assert {name: found for name, one in objects.items() if (found := schemas.object_faults(one, version))} == {}


def test_the_options_change_the_objects() -> None:
    objects = kubernetes.rendered(VALUES["volume, each option"])
    pod = objects["Deployment", "embedding-server"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 20 + 2 * 7 + 5
    assert pod["enableServiceLinks"] is False
    variables = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    assert (variables["EMB_SHUTDOWN_DELAY_S"], variables["EMB_DRAIN_TIMEOUT_S"]) == ("20", "7")
    assert pod["containers"][0]["image"] == "registry.example/embedding-server:2"
    assert objects["PersistentVolumeClaim", "embedding-server-models"]["spec"]["storageClassName"] == "shared"
    objects = kubernetes.rendered(VALUES["volume of the user"])
    assert ("PersistentVolumeClaim", "embedding-server-models") not in objects
    pod = objects["Deployment", "embedding-server"]["spec"]["template"]["spec"]
    (claim,) = (volume["persistentVolumeClaim"] for volume in pod["volumes"] if volume["name"] == "models")
    assert claim["claimName"] == "theirs"


def test_templates_name_only_values_that_exist() -> None:
    # Helm renders nothing for a name without a value.
    defaults = kubernetes.read(CHART / "values.yaml")[0]
    texts = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    for name in (names := set(re.findall(r"\.Values\.([\w.]+)", texts))):
        reduce(getitem, name.split("."), defaults)
    assert len(names) > 30


@with_helm
def test_helm_finds_no_fault_in_the_chart() -> None:
    subprocess.run(
        ["helm", "lint", "--strict", str(CHART), "--kube-version", schemas.OLDEST], check=True, capture_output=True
    )


@with_helm
def test_helm_refuses_a_misspelt_value() -> None:
    result = subprocess.run([*kubernetes.HELM, "--set", "image.tagx=1"], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "tagx" in result.stderr
