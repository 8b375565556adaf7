"""The few objects that tests make all the time, and what they ask of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.bed.client import Object
from tests.support.bed.images import SHOW


def pod(
    name: str,
    namespace: str,
    *,
    image: str = SHOW,
    command: Sequence[str] = (),
    limits: Mapping[str, int | str] | None = None,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A pod of one container, ``main``, of an image that the node already has.

    ``spec`` are further fields of the pod's spec, such as ``nodeName``.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "dnsPolicy": "Default",  # there is no DNS
            "containers": [container("main", image, command, limits, env)],
            **spec,
        },
    }


def container(
    name: str,
    image: str = SHOW,
    command: Sequence[str] = (),
    limits: Mapping[str, int | str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Object:
    """A container; what it may not exceed is also what it requests."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "resources": {"limits": {key: str(value) for key, value in (limits or {}).items()}},
    }


def deployment(name: str, namespace: str, replicas: int = 1, **of_the_pod: Any) -> Object:
    """A Deployment of ``pod(..., **of_the_pod)``, labelled ``app=<name>``."""
    labels = {**of_the_pod.pop("labels", {}), "app": name}
    template = pod(name, namespace, labels=labels, **of_the_pod)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {key: template["metadata"][key] for key in ("labels", "annotations")},
                "spec": template["spec"],
            },
        },
    }


def condition(obj: Object, kind: str) -> str | None:
    """The status of one of an object's conditions: "True", "False", "Unknown" or None."""
    for entry in (obj.get("status") or {}).get("conditions") or ():
        if entry["type"] == kind:
            return entry["status"]
    return None


def ready(obj: Object) -> bool:
    """Whether a pod or a node says that it is Ready."""
    return condition(obj, "Ready") == "True"


def phase(of: str):
    """A condition for wait_for: the pod is in this phase."""
    return lambda obj: obj["status"].get("phase") == of
