"""The Helm chart makes the objects of the Kustomize overlays, and a typo in any template is found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm_templates import Chart, TemplateError, merged

kubernetes = pytest.importorskip(
    "tests.kubernetes_files", reason="kubernetes-validate is not installed", exc_type=ImportError
)
schemas = pytest.importorskip("tests.kubernetes_schemas", exc_type=ImportError)
CHART: Path = kubernetes.CHART
TEMPLATES = Chart(CHART)
OVERLAYS: Path = kubernetes.FOLDER / "overlays"
# Renders for the oldest supported version of Kubernetes; without --kube-version, some builds of Helm take 1.20.
HELM = ["helm", "template", "embedding-server", str(CHART), "--kube-version", schemas.OLDEST]
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


def rendered(values: dict[str, Any]) -> Any:
    return kubernetes.by_name(TEMPLATES.render("embedding-server", values))


def without_helms_labels(objects: Any) -> Any:
    """Returns the objects with sorted lists, after removing the two labels that only Helm sets."""
    for document in objects.values():
        labels = document["metadata"]["labels"]
        assert labels.pop("app.kubernetes.io/managed-by") == "Helm"
        assert labels.pop("helm.sh/chart").startswith("embedding-server-")
    return kubernetes.ordered(objects)


@pytest.mark.parametrize("source", ["volume", "bucket"])
def test_the_chart_makes_the_objects_of_the_overlay(source: str) -> None:
    assert without_helms_labels(rendered(VALUES[source])) == kubernetes.ordered(kubernetes.built(OVERLAYS / source))


def test_the_chart_routes_as_the_canary_overlay_does() -> None:
    route = {"enabled": True, "canary": {"release": "embedding-server-canary", "weight": 10}}
    objects = without_helms_labels(rendered({"route": route, "networkPolicy": {"gatewayNamespace": "gateways"}}))
    for document in kubernetes.read(OVERLAYS / "canary" / "routes.yaml"):
        # The chart's first release is the stable one, under its own name.
        text = json.dumps(document["spec"]).replace("embedding-server-stable", "embedding-server")
        assert objects[document["kind"], "embedding-server"]["spec"] == kubernetes.ordered(json.loads(text))
    ((change,),) = kubernetes.read(OVERLAYS.parent / "components" / "gateway" / "network-policy.yaml")
    assert kubernetes.ordered(change["value"]) in objects["NetworkPolicy", "embedding-server"]["spec"]["ingress"]


@pytest.mark.parametrize("version", [schemas.OLDEST, schemas.NEWEST])
@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_knows_every_field_that_the_chart_sets(name: str, version: str) -> None:
    objects = rendered(VALUES[name])
    assert {name: found for name, one in objects.items() if (found := schemas.object_faults(one, version))} == {}


@pytest.mark.parametrize("name", VALUES)
def test_the_values_have_a_strict_schema(name: str) -> None:
    file = CHART / "values.yaml"
    values = merged(kubernetes.read(file)[0], VALUES[name])
    assert kubernetes.faults(file, [values]) == []


def test_the_options_change_the_objects() -> None:
    objects = rendered(VALUES["volume, each option"])
    pod = objects["Deployment", "embedding-server"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 20 + 2 * 7 + 5
    assert pod["enableServiceLinks"] is False
    variables = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    assert (variables["EMB_SHUTDOWN_DELAY_S"], variables["EMB_DRAIN_TIMEOUT_S"]) == ("20", "7")
    assert pod["containers"][0]["image"] == "registry.example/embedding-server:2"
    assert objects["PersistentVolumeClaim", "embedding-server-models"]["spec"]["storageClassName"] == "shared"
    objects = rendered(VALUES["volume of the user"])
    assert ("PersistentVolumeClaim", "embedding-server-models") not in objects
    pod = objects["Deployment", "embedding-server"]["spec"]["template"]["spec"]
    (claim,) = (volume["persistentVolumeClaim"] for volume in pod["volumes"] if volume["name"] == "models")
    assert claim["claimName"] == "theirs"


def typos(text: str) -> Iterator[str]:
    """Yields the template's text with one field of an object, or one word of an action, misspelt, for each of them."""
    without_comments = re.sub(r"(?m)#.*$", lambda found: " " * len(found[0]), text)
    # A word after a slash, a dot or a hyphen is a part of a label; another test, which compares with the overlays,
    # finds typos in labels.
    yield from _misspelt(text, re.finditer(r"(?<![\w./-])[a-zA-Z]\w+(?=:\s)", without_comments))
    for action in re.finditer(r"\{\{(?!/).*?\}\}", text):
        yield from _misspelt(text, re.compile(r"[a-zA-Z_]\w*").finditer(text, action.start(), action.end()))


def _misspelt(text: str, words: Iterator[re.Match[str]]) -> Iterator[str]:
    yield from (f"{text[: found.end()]}x{text[found.end() :]}" for found in words)


def template_faults(name: str, text: str) -> Iterator[str]:
    """Yields the faults that the tests of this file find if one template has another text."""
    # A template of definitions makes no object, so it is rendered together with a template that uses them.
    user = TEMPLATES.texts["disruption-budget.yaml"] if name.startswith("_") else ""

    def objects_of(text: str, values: dict[str, Any]) -> Any:
        return kubernetes.by_name(TEMPLATES.render_text(text + user, "embedding-server", values, replaced=name))

    for source, values in VALUES.items():
        try:
            objects = objects_of(text, values)
        except (TemplateError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            yield repr(error)
            return
        # test_the_chart_makes_the_objects_of_the_overlay finds this difference.
        if source in ("volume", "bucket") and objects != objects_of(TEMPLATES.texts[name], values):
            yield "other objects than those of the overlay"
        yield from (fault for one in objects.values() for fault in schemas.object_faults(one))


@pytest.mark.parametrize("name", TEMPLATES.texts)
def test_a_typo_in_a_template_is_found(name: str) -> None:
    tried = 0
    for changed in typos(TEMPLATES.texts[name]):
        tried += 1
        assert next(template_faults(name, changed), ""), changed
    assert tried > 5


@with_helm
@pytest.mark.parametrize("name", VALUES)
def test_helm_renders_the_same(name: str, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES[name]))
    text = subprocess.run([*HELM, "--values", str(values)], check=True, capture_output=True, text=True).stdout
    objects = kubernetes.by_name([document for document in yaml.safe_load_all(text) if document is not None])
    assert objects == rendered(VALUES[name])


@with_helm
def test_helm_finds_no_fault_in_the_chart() -> None:
    subprocess.run(
        ["helm", "lint", "--strict", str(CHART), "--kube-version", schemas.OLDEST], check=True, capture_output=True
    )


@with_helm
def test_helm_refuses_a_misspelt_value() -> None:
    result = subprocess.run([*HELM, "--set", "image.tagx=1"], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "tagx" in result.stderr
