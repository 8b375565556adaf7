"""Null is read as Go reads it, in every field of every kind: it stands for nothing."""

import copy
import io
import json
from pathlib import Path

import msgspec
import pytest
import urllib3
from msgspec import inspect, structs

from kubeshare.decoders import CLUSTER_NODES, CLUSTER_PODS, SHARE_POD_OBJECTS, SharePodContent
from kubeshare.model import ClusterPod, SharePod
from tests.support import dra
from tests.support import sample_cluster as sample
from vgpu.apiserver.answers import refusal
from vgpu.kube import kinds
from vgpu.kube.documents import EventType
from vgpu.kube.dump import decode_dump
from vgpu.kube.installation_kinds import INSTALLATION_KINDS, NODE_HEARTBEATS, REPORTED_NODES
from vgpu.model.go_json import decode_go
from vgpu.model.reasons import SourceError
from vgpucli.doctor.bare_pods import BARE_PODS

GOLDEN = Path(__file__).parents[1] / "golden" / "extender" / "filter-whole-nodes.json"

AMOUNTS = {
    *("limits", "requests", "capacity", "allocatable", "overhead", "hard", "used"),
    "consumedCapacity",
}
TEXTS = {
    "labels",
    "annotations",
    "nodeSelector",
    "data",
    "matchLabels",
    "attributes",
    "disruptedPods",
}
"""Fields that are maps in Go, of quantities and of others; all other objects are structs."""

READERS = (
    *kinds.KINDS,
    *INSTALLATION_KINDS,
    *(kinds.NAMED_CONFIG_MAPS, kinds.POD_MARKS, kinds.NAMESPACE_MARKS, kinds.POD_LABELS),
    *(kinds.LEASE_ANNOTATIONS, kinds.NODE_CAPACITIES, REPORTED_NODES, NODE_HEARTBEATS, BARE_PODS),
    *(CLUSTER_PODS, CLUSTER_NODES, SHARE_POD_OBJECTS),
)

LATER = {
    "env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}],
    "tolerations": [{"key": "gpu", "operator": "Equal", "value": "x", "effect": "NoSchedule"}],
    "managedFields": [
        {"manager": "kubelet", "subresource": "status", "time": "2026-01-01T00:00:00Z"}
    ],
    "scopeSelector": {"matchExpressions": []},
    "resourceClaims": [{"name": "gpu"}],
}
"""What is decoded later than its object, by the name of its field."""


SCALARS = {
    inspect.StrType: "1",
    inspect.IntType: 1,
    inspect.FloatType: 1.0,
    inspect.BoolType: True,
    inspect.DateTimeType: "2026-01-01T00:00:00Z",
}


def example(info, name="", depth=8):
    """A value of a type, with every field."""
    match info:
        case inspect.UnionType():
            types = [type_ for type_ in info.types if not isinstance(type_, inspect.NoneType)]
            by_name = {type(type_): type_ for type_ in types}
            return example(by_name.get(inspect.StrType) or types[0], name, depth)
        case inspect.StructType():
            fields = (field for field in info.fields if depth > 0)
            return {
                field.encode_name: example(field.type, field.encode_name, depth - 1)
                for field in fields
            }
        case inspect.DictType():
            value = example(info.value_type, name, depth - 1)
            return {"nvidia.com/gpu": value, "cpu": value}
        case inspect.ListType() | inspect.VarTupleType():
            return LATER.get(name, [example(info.item_type, name, depth - 1)])
    return SCALARS.get(type(info)) or LATER.get(name, {})


def whole(kind):
    """An object of a kind with every field that is read."""
    fields = SharePodContent if kind is SHARE_POD_OBJECTS else kind.decoders.object.type
    made = {**example(inspect.type_info(fields)), "kind": kind.name}
    if kind.name == "Pod" and kind is not BARE_PODS:
        made["status"] = example(inspect.type_info(kinds.wire.PodStatusFields))
    if kind is SHARE_POD_OBJECTS:
        made["status"] = example(inspect.type_info(kinds.wire.SharePodStatus))
    return made


def samples():
    """Objects of the tests' cluster, and a pod and nodes as kube-scheduler writes them."""
    golden = json.loads(GOLDEN.read_bytes())
    found = [*sample.items(), {"kind": "Pod", **golden["Pod"]}]
    found += [{"kind": "Node", **each} for each in golden["Nodes"]["items"]]
    found.append(dra.resource_claim_json("a", dra.result(consumed="1Gi"), pods=[("p", "u")]))
    found.append(dra.resource_slice(dra.published("gpu-0", sample.uuid(1))))
    found.append(sample.resource_quota("q", {"requests.nvidia.com/gpu": "1"}, {}))
    return found


def answer(kind, document):
    """What a reader gets; None if it cannot read the object."""
    try:
        found = kind.one(json.dumps(document).encode())
    except SourceError:
        return None
    if isinstance(found, SharePod):  # what is copied is kept as it is
        return structs.replace(found, content=msgspec.Raw(b""), copied=None)
    return structs.replace(found, status=None) if isinstance(found, ClusterPod) else found


def places(value, path=()):
    """The paths of all values inside an object."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in members:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def changed(document, path, change):
    made = copy.deepcopy(document)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    change(inner, path[-1])
    return made


def as_go_reads_it(document, path):
    """The object that means the same as one with null at this place."""
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    kind = type(holder[path[-1]])
    zero = 0 if kind is str and path[-2] in AMOUNTS else kind()
    if isinstance(holder, list) or path[-2:-1] in {(name,) for name in AMOUNTS | TEXTS}:
        return changed(document, path, lambda inner, key: inner.__setitem__(key, zero))
    return changed(document, path, lambda inner, key: inner.pop(key))


def check(kind, document):
    assert answer(kind, document) is not None or kind is BARE_PODS, document
    count = 0
    for path in places(document):
        if path[0] in ("kind", "apiVersion"):
            continue
        null = changed(document, path, lambda inner, key: inner.__setitem__(key, None))
        assert answer(kind, null) == answer(kind, as_go_reads_it(document, path)), (kind.name, path)
        count += 1
    assert count


@pytest.mark.parametrize("number", range(len(READERS)))
def test_null_in_any_field_is_as_go_reads_it(number):
    kind = READERS[number]
    check(kind, whole(kind))


@pytest.mark.parametrize("kind", {each.name: each for each in READERS})
def test_null_in_any_field_of_a_samples_object_is_as_go_reads_it(kind):
    for reader in READERS:
        for document in samples():
            if reader.name == kind == document["kind"]:
                check(reader, document)


def test_an_object_with_nulls_costs_its_list_and_its_watch_nothing():
    sharer = sample.share_pod("a", "n1", "0.5", 1)
    null = {**sharer, "spec": {"nodeName": None, "containers": [{"resources": None}, None]}}
    text = json.dumps({"kind": "List", "items": [sharer, null], "metadata": {"continue": None}})
    page = kinds.SHARE_PODS.page(text.encode())
    assert [pod.node for pod in page.objects] == ["n1", ""]
    assert page.malformed == ()
    line = json.dumps({"type": "ADDED", "object": null}).encode()
    event = kinds.SHARE_PODS.event(line)
    assert (event.type, event.object) == (EventType.ADDED, page.objects[1])
    assert decode_dump(text.encode()).share_pods == page.objects


def test_a_list_without_items_is_empty():
    assert kinds.PODS.page(b'{"kind":"PodList","metadata":{},"items":null}').objects == ()
    assert decode_dump(b'{"kind":"PodList","metadata":{},"items":null}').others == {}


def test_a_refusal_with_nulls_keeps_its_reason():
    body = b'{"reason":"Forbidden","message":"no","metadata":{"continue":null}}'
    answer = urllib3.HTTPResponse(io.BytesIO(body), status=403, preload_content=False)
    error = refusal("https://api", answer)
    assert (error.status, error.reason, error.message) == (403, "Forbidden", "no")


def test_what_cannot_be_null_is_named_with_its_place():
    with pytest.raises(msgspec.ValidationError, match="required field `metadata`"):
        decode_go(b'{"kind":null,"metadata":null}', kinds.PODS.decoders.object)
    text = b'{"kind":null,"metadata":{"name":"a"},"spec":{"nodeName":5}}'
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.nodeName"):
        decode_go(text, kinds.RESOURCE_SLICES.decoders.object)
