"""What kube-scheduler reads of pods: requests of all containers, and parts that are not judged."""

import json

import pytest

from vgpu.kube.documents import Keep
from vgpu.kube.scheduling_objects import SCHEDULING_NODES, UncheckedPart, scheduling_pods

GIB = 1024**3


def container(name="main", *, limits=None, always=False, **requests):
    named = {key.replace("_", "-"): value for key, value in requests.items()}
    made = {"name": name, "resources": {"requests": named, "limits": limits or {}}}
    return {**made, "restartPolicy": "Always"} if always else made


def placed(spec, phase="Running", status=None):
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "a",
            "namespace": "ml",
            "uid": "u",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"nodeName": "gpu-1", **spec},
        "status": {"phase": phase, **(status or {})},
    }
    (read,) = scheduling_pods(Keep.SHARING).kept(json.dumps(pod).encode(), "pods", Keep.ALL)
    return read


@pytest.mark.parametrize(
    ("spec", "requests"),
    [
        ({"containers": [container(cpu="100m", memory="1Gi")]}, {"cpu": 100, "memory": GIB}),
        ({"containers": [container(cpu="1.5"), container(cpu="0.0001")]}, {"cpu": 1501}),
        (
            {"containers": [container(limits={"cpu": "2", "memory": "1k"})]},
            {"cpu": 2000, "memory": 1000},
        ),
        ({"containers": [container(limits={"cpu": "2"}, cpu="1")]}, {"cpu": 1000}),
        (
            {
                "containers": [container(cpu="1")],
                "initContainers": [
                    container("side", always=True, cpu="500m"),
                    container("init", cpu="3"),
                    container("late", always=True, cpu="250m"),
                ],
            },
            {"cpu": 3500},
        ),
        (
            {
                "containers": [container(cpu="4")],
                "initContainers": [
                    container("init", cpu="1"),
                    container("s", always=True, cpu="1"),
                ],
            },
            {"cpu": 5000},
        ),
        (
            {"containers": [container(cpu="1")], "overhead": {"cpu": "250m", "memory": "120Mi"}},
            {"cpu": 1250, "memory": 120 * 1024**2},
        ),
        (
            {
                "containers": [container(cpu="1", memory="1Gi", ephemeral_storage="1Gi")],
                "resources": {"requests": {"cpu": "3"}, "limits": {"memory": "4Gi"}},
                "overhead": {"cpu": "1"},
            },
            {"cpu": 4000, "memory": GIB, "ephemeral-storage": GIB},
        ),
        (
            {"containers": [container()], "resources": {"limits": {"memory": "4Gi"}}},
            {"memory": 4 * GIB},
        ),
        ({"containers": [container(limits={"rdma/hca": "1"})]}, {"rdma/hca": 1}),
        ({"containers": []}, {}),
    ],
)  # fmt: skip
def test_requests_are_those_of_kube_scheduler(spec, requests):
    assert placed(spec).requests == requests


@pytest.mark.parametrize("limits", [{}, {"nvidia.com/gpu": 1}], ids=["without GPU", "with a GPU"])
@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_a_pod_that_has_ended_counts_on_no_node(limits, phase):
    read = placed({"containers": [container(limits=limits, cpu="1")]}, phase)
    assert read.node == ("gpu-1" if phase == "Running" else "")
    assert (read.pod is None) is (not limits)


def test_a_resource_that_a_resource_claim_supplies_counts_on_no_node():
    asked = {"containers": [container(limits={"nvidia.com/gpu": 1}, cpu="1")]}
    mapping = [{"containerName": "main", "resourceName": "nvidia.com/gpu"}]
    supplied = {"extendedResourceClaimStatus": {"requestMappings": mapping}}
    assert placed(asked).requests == {"cpu": 1000, "nvidia.com/gpu": 1}
    assert placed(asked, status=supplied).requests == {"cpu": 1000}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TERM = [{"topologyKey": "zone"}]


def spread(how):
    return {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": how}]}


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ({}, ()),
        ({"affinity": {"podAffinity": {REQUIRED: TERM}}}, ("pod_affinity",)),
        ({"affinity": {"podAntiAffinity": {REQUIRED: TERM}}}, ("pod_affinity",)),
        ({"affinity": {"podAntiAffinity": {PREFERRED: TERM}}}, ()),
        ({"affinity": {"nodeAffinity": {PREFERRED: TERM}}}, ()),
        ({"affinity": 5}, ("unreadable",)),
        (
            spread("DoNotSchedule"),
            ("topology_spread",),
        ),
        (
            spread("ScheduleAnyway"),
            (),
        ),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, ("volumes",)),
        ({"volumes": [{"name": "v", "ephemeral": {}}]}, ("volumes",)),
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "hostPath": {}}]}, ()),
        ({"ports": [{"containerPort": 80, "hostPort": 8080}]}, ("host_ports",)),
        ({"ports": [{"containerPort": 80}]}, ()),
        ({"ports": [{"containerPort": 80}], "hostNetwork": True}, ("host_ports",)),
        ({"resourceClaims": [{"name": "g"}]}, ("resource_claims",)),
        ({"schedulingGates": [{"name": "example.com/wait"}]}, ("scheduling_gates",)),
        ({"schedulerName": "volcano"}, ("other_scheduler",)),
        ({"schedulerName": "hami-scheduler"}, ()),
        ({"runtimeClassName": "nvidia"}, ()),
    ],
)  # fmt: skip
def test_what_is_not_judged_is_named_if_the_pod_has_it(spec, parts):
    ports = spec.pop("ports", [])
    main = {**container(limits={"nvidia.com/gpu": 1}), "ports": ports}
    scheduling = placed({"containers": [main], **spec}).scheduling
    assert tuple(each.part for each in scheduling.unchecked) == tuple(map(UncheckedPart, parts))


def test_a_node_has_all_labels_and_every_resource():
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"any": "label"}},
        "status": {"allocatable": {"cpu": "63500m", "memory": "1Gi", "pods": "110"}},
    }
    read = SCHEDULING_NODES.one(json.dumps(node).encode())
    assert read.labels == {"any": "label"}
    assert read.allocatable == {"cpu": 63500, "memory": GIB, "pods": 110}
    assert read.node.name == "n"
