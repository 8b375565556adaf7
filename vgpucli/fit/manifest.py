"""The pod of a manifest: a Pod, or the template of a workload's pods."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from vgpu.io.yaml_documents import NotYamlError, yaml_documents
from vgpu.kube.documents import Keep
from vgpu.kube.kept_keys import is_gpu_resource
from vgpu.kube.scheduling_objects import SchedulingPod, scheduling_pods
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.model.reasons import Reason, SourceError

NAME: Final = "the pod"
"""Name of a pod that has none yet."""

DEPTH: Final = 4
"""Maximum number of templates within each other: a CronJob has two."""


class AskedPod(msgspec.Struct, frozen=True):
    """A pod, and what kube-scheduler reads of it."""

    pod: Pod
    scheduling: SchedulingPod


def pod_of_requests(requests: Mapping[str, int], namespace: str) -> AskedPod:
    """A pod whose only container requests these extended resources, in units."""
    of_gpus = {name: units for name, units in requests.items() if is_gpu_resource(name)}
    others = {name: units for name, units in requests.items() if name not in of_gpus}
    container = Container("main", of_gpus, others=others)
    pod = Pod(PodRef(NAME, namespace, NAME), containers=(container,))
    return AskedPod(pod, SchedulingPod(requests))


def pods_of_manifest(content: bytes, source: str, namespace: str) -> tuple[AskedPod, ...]:
    """The pods of a YAML or JSON manifest that request extended resources of a sharing system.

    ``namespace`` is that of objects without one. Raises SourceError, which names ``source``.
    """
    try:
        documents = yaml_documents(content)
    except NotYamlError as error:
        raise SourceError(Reason.MALFORMED, source, f"it is not YAML: {error}") from error
    pods: list[AskedPod] = []
    kind = scheduling_pods(Keep.SHARING)
    for document in documents:
        for spec in _templates(document, DEPTH):
            pods += (
                AskedPod(each.pod, each.scheduling)
                for each in kind.kept(_as_pod(spec, source, namespace), source, Keep.ALL)
                if each.pod is not None and each.scheduling is not None
            )
    return tuple(pods)


def _templates(document: object, depth: int) -> Iterator[dict[str, Any]]:
    """The Pods and pod templates in an object; of a List, in its items."""
    if not isinstance(document, dict) or not depth:
        return
    items = document.get("items")
    if isinstance(items, list):
        for item in items:
            yield from _templates(item, depth - 1)
        return
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return
    if "containers" in spec:
        yield document
    for key in ("template", "jobTemplate"):
        inner = spec.get(key)
        if isinstance(inner, dict):
            yield from _templates(_in_namespace(inner, document), depth - 1)


def _in_namespace(inner: dict[str, Any], outer: dict[str, Any]) -> dict[str, Any]:
    """A template with the name and namespace of its object."""
    of_outer, of_inner = _metadata(outer), _metadata(inner)
    named = {key: of_outer[key] for key in ("name", "namespace") if key in of_outer}
    return {**inner, "metadata": {**of_inner, **named}}


def _metadata(document: dict[str, Any]) -> dict[str, Any]:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _as_pod(document: dict[str, Any], source: str, namespace: str) -> bytes:
    """The document as the JSON of a Pod that does not exist yet. Raises SourceError."""
    named = {"name": NAME, "namespace": namespace, **_metadata(document), "uid": NAME}
    spec = {key: value for key, value in document["spec"].items() if key != "nodeName"}
    try:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec}
        return msgspec.json.encode(pod)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, source, f"JSON has no such value: {error}") from error
