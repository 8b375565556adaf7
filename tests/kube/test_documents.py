"""The API server's JSON: what is kept, what is dropped, and what is refused."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.kube.documents import (
    ApiError,
    EventType,
    Keep,
    ObjectPage,
    WatchEvent,
)
from vgpu.kube.dump import decode_dump
from vgpu.kube.kept_keys import kept_keys, shares_gpus
from vgpu.kube.kinds import (
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    NODE_CAPACITIES,
    NODES,
    PODS,
    SHARE_PODS,
)
from vgpu.kube.quantities import whole
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import (
    BOUND_DEVICE,
    MANAGER_PORT,
    SHARE_POD,
    Container,
    ContainerState,
    Lease,
    Node,
    OwnerReference,
    Pod,
    Status,
)
from vgpu.model.reasons import Reason, SourceError

VGPU = {"limits": {"cpu": "2", "volcano.sh/vgpu-number": "1"}, "requests": {"cpu": "1"}}


def text(value):
    return json.dumps(value).encode()


def metadata(name="web", **more):
    return {"name": name, "namespace": "team", "uid": f"uid-{name}", **more}


def pod(name="web", *, meta=None, spec=None, status=None):
    spec = {"containers": [{"name": "main", "resources": VGPU}]} if spec is None else spec
    return {"metadata": metadata(name, **(meta or {})), "spec": spec, "status": status or {}}


def plain(name="plain"):
    return pod(name, spec={"containers": [{"name": "main"}]})


def pod_list(*items, **meta):
    return text({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": list(items)})


def refusal(decode, content):
    with pytest.raises(SourceError) as refused:
        decode(content, "what was read")
    assert refused.value.reason is Reason.MALFORMED
    assert refused.value.object_name == "what was read"
    return refused.value.detail


# ---------------------------------------------------------------- pods


def test_everything_that_the_product_needs_of_a_pod_is_kept_and_nothing_else():
    document = {
        "kind": "Pod",
        "metadata": metadata(
            resourceVersion="17",
            creationTimestamp="2025-01-01T00:00:00Z",
            deletionTimestamp="2025-01-01T02:00:30+02:00",
            annotations={"volcano.sh/vgpu-node": "node1", "example.com/other": "x"},
            labels={"sharedgpu/gpu_limit": "0.5", "app": "web"},
            ownerReferences=[
                {"kind": "Thing", "name": "thing", "uid": "u1"},
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "web-1",
                    "uid": "u2",
                    "controller": True,
                },
            ],
            managedFields=[
                {
                    "manager": "kubelet",
                    "subresource": "status",
                    "time": "2025-01-01T00:01:01Z",
                    "fieldsV1": {"f:status": {}},
                }
            ],
        ),
        "spec": {
            "nodeName": "node1",
            "schedulerName": "volcano",
            "priority": 1000,
            "restartPolicy": "OnFailure",
            "schedulingGates": [{"name": "example.com/wait"}],
            "containers": [{"name": "main", "image": "x", "resources": VGPU}],
            "initContainers": [
                {"name": "first", "resources": {"limits": {"nvidia.com/gpu": "1k"}}},
                {"name": "beside", "restartPolicy": "Always"},
            ],
        },
        "status": {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": "Pod was rejected",
            "startTime": "2025-01-01T00:00:02Z",
            "conditions": [
                {"type": "Ready", "status": "False"},
                {
                    "type": "PodScheduled",
                    "status": "True",
                    "lastTransitionTime": "2025-01-01T00:00:01Z",
                },
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "containerID": "containerd://abc",
                    "restartCount": 3,
                    "state": {
                        "terminated": {
                            "reason": "Error",
                            "message": "out of memory",
                            "finishedAt": "2025-01-01T00:01:00.5Z",
                        }
                    },
                }
            ],
            "initContainerStatuses": [
                {"name": "first", "state": {"waiting": {"reason": "PodInitializing"}}},
                {"name": "beside", "state": {"running": {"startedAt": None}}},
            ],
            "ephemeralContainerStatuses": [{"name": "debug", "containerID": "cri-o://def"}],
        },
    }
    assert PODS.one(text(document)) == Pod(
        ref=PodRef("uid-web", "team", "web"),
        resource_version="17",
        node="node1",
        annotations={"volcano.sh/vgpu-node": "node1"},
        labels={"sharedgpu/gpu_limit": "0.5"},
        containers=(
            Container("main", {"volcano.sh/vgpu-number": 1}),
            Container("first", {"nvidia.com/gpu": 1000}, ContainerKind.INIT),
            Container("beside", {}, ContainerKind.SIDECAR),
        ),
        phase="Failed",
        reason="UnexpectedAdmissionError",
        message="Pod was rejected",
        statuses=(
            Status(
                "main",
                ContainerState.TERMINATED,
                "abc",
                reason="Error",
                message="out of memory",
                finished_at=1735689660.5,
                restarts=3,
            ),
            Status(
                "first", ContainerState.WAITING, kind=ContainerKind.INIT, reason="PodInitializing"
            ),
            Status("beside", ContainerState.RUNNING, kind=ContainerKind.SIDECAR),
            Status("debug", ContainerState.WAITING, "def", kind=ContainerKind.EPHEMERAL),
        ),
        created_at=1735689600.0,
        deleted_at=1735689630.0,
        scheduled_at=1735689601.0,
        owner=OwnerReference("ReplicaSet", "web-1", "u2", "apps/v1"),
        priority=1000,
        started_at=1735689602.0,
        status_at=1735689661.0,
        gated=True,
        scheduler="volcano",
        gates=("example.com/wait",),
        restart_policy="OnFailure",
    )


def test_the_reason_that_a_pod_is_not_bound_is_the_schedulers_message():
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    message = "0/3 nodes are available: 3 Insufficient volcano.sh/vgpu-number."
    with_words = pod(status={"conditions": [condition | {"message": message}]})
    without = pod(status={"conditions": [condition]})
    assert PODS.one(text(with_words)).unschedulable == message
    assert PODS.one(text(without)).unschedulable == "Unschedulable"


def test_null_stands_for_nothing():
    nulls = {
        "metadata": metadata(
            annotations=None, labels=None, creationTimestamp=None, ownerReferences=None
        ),
        "spec": {"containers": None, "initContainers": None, "priority": None},
        "status": {"conditions": None, "containerStatuses": None},
    }
    assert PODS.one(text(nulls)) == Pod(PodRef("uid-web", "team", "web"))
    assert PODS.page(b'{"items":null}') == ObjectPage(())


def test_a_static_pods_uid_is_the_kubelets():
    document = pod(meta={"annotations": {"kubernetes.io/config.mirror": "f" * 32}})
    assert PODS.one(text(document)).kubelet_uid == "f" * 32


def test_a_request_counts_where_there_is_no_limit():
    asks = {"requests": {"aliyun.com/gpu-mem": "3"}, "limits": {"cpu": "1"}}
    document = pod(spec={"containers": [{"name": "main", "resources": asks}]})
    assert PODS.one(text(document)).containers[0].limits == {"aliyun.com/gpu-mem": 3}


def test_a_limit_comes_before_a_request():
    asks = {"requests": {"aliyun.com/gpu-mem": "3"}, "limits": {"aliyun.com/gpu-mem": "4"}}
    document = pod(spec={"containers": [{"name": "main", "resources": asks}]})
    assert PODS.one(text(document)).containers[0].limits == {"aliyun.com/gpu-mem": 4}


def test_a_quantity_that_is_no_whole_number_is_kept_as_its_text():
    asks = {"limits": {"aliyun.com/gpu-mem": "1500m", "tencent.com/vcuda-core": 0.5}}
    document = pod(spec={"containers": [{"name": "main", "resources": asks}]})
    container = PODS.one(text(document)).containers[0]
    assert container.limits == {}
    assert container.broken == {"aliyun.com/gpu-mem": "1500m", "tencent.com/vcuda-core": "0.5"}
    assert PODS.page(pod_list(document)).objects


@pytest.mark.parametrize(
    ("env", "kept"),
    [
        (None, {}),
        ([{"name": "PATH", "value": "/bin"}], {}),
        ([{"name": "CUDA_DISABLE_CONTROL", "value": "true"}], {"CUDA_DISABLE_CONTROL": "true"}),
        (
            [{"name": "CUDA_DISABLE_CONTROL", "value": each} for each in ("true", "false")],
            {"CUDA_DISABLE_CONTROL": "false"},
        ),
        ([{"name": "CUDA_DISABLE_CONTROL", "valueFrom": {}}], {"CUDA_DISABLE_CONTROL": ""}),
        ([{"name": "A", "value": "CUDA_DISABLE_CONTROL"}], {}),
        ("CUDA_DISABLE_CONTROL", {}),
        ([{"name": 1, "value": "CUDA_DISABLE_CONTROL"}], {}),
    ],
)
def test_of_a_containers_environment_what_a_scheme_reads_is_kept(env, kept):
    document = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [{"name": "c", "env": env}]},
    }
    (container,) = PODS.one(json.dumps(document).encode()).containers
    assert container.env == kept


def test_times_without_a_zone_are_refused_by_the_pods_name():
    naive = pod(meta={"creationTimestamp": "2025-01-01T00:00:00"})
    assert refusal(PODS.one, text(naive)).startswith("team/web: ")
    inside = pod(status={"containerStatuses": [{"name": 1}]})
    (bad,) = PODS.page(pod_list(plain(), inside)).malformed
    assert (bad.ref.namespace, bad.ref.name) == ("team", "web")


# ---------------------------------------------------------------- lists


def test_a_page_gives_its_gpu_pods_and_where_to_go_on():
    page = PODS.page(pod_list(plain(), pod("a"), **{"continue": "next", "resourceVersion": "9"}))
    assert [one.ref.name for one in page.objects] == ["a"]
    assert (page.continue_token, page.resource_version, page.total) == ("next", "9", 2)


@pytest.mark.parametrize(
    "mark",
    [
        {"annotations": {"kubeshare/gpu_request": "0.5"}},
        {"labels": {"sharedgpu/gpu_limit": "0.5"}},
        {"annotations": {"volcano.sh/vgpu-ids-new": ""}},
        {"annotations": {"hami.io/vgpu-node": "n"}},
        {"annotations": {"ALIYUN_COM_GPU_MEM_IDX": "0"}},
        {"annotations": {"scheduler.framework.gpushare.allocation": "{}"}},
        {"annotations": {"tencent.com/predicate-gpu-idx-0": "0"}},
    ],
    ids=lambda mark: next(iter(next(iter(mark.values())))),
)
def test_a_sharing_systems_mark_makes_a_pod_worth_keeping(mark):
    marked = pod(meta=mark, spec={})
    assert len(PODS.page(pod_list(marked)).objects) == 1


@pytest.mark.parametrize("prefix", kept_keys().resources)
def test_asking_for_a_shared_resource_makes_a_pod_worth_keeping(prefix):
    def asking(quantity, where="containers"):
        return pod(spec={where: [{"name": "c", "resources": {"limits": {prefix + "x": quantity}}}]})

    asks = [asking("1"), asking(1), asking("1", "initContainers"), asking("nonsense")]
    assert len(PODS.page(pod_list(*asks)).objects) == 4
    assert PODS.page(pod_list(asking("0"), asking(0))).objects == ()


def test_all_pods_of_one_node_can_be_asked_for():
    here, there = plain("here"), plain("there")
    here["spec"]["nodeName"], there["spec"]["nodeName"] = "node1", "node2"
    page = PODS.page(pod_list(here, there, plain("nowhere")), keep=Keep.ALL, node="node1")
    assert [one.ref.name for one in page.objects] == ["here"]
    assert page.total == 3


def test_the_pod_whose_fault_it_is_is_named():
    broken = pod("b")
    broken["metadata"]["uid"] = 5
    page = PODS.page(pod_list(pod("a"), broken))
    assert [each.ref.name for each in page.malformed] == ["b"]


# ---------------------------------------------------------------- KubeShare


def test_a_sharepod_comes_in_the_shape_of_a_pod():
    document = pod(
        meta={"annotations": {"kubeshare/GPUID": "zxcvb", BOUND_DEVICE: "forged"}}, spec={}
    )
    document["status"] = {
        "PodStatus": {"phase": "Running", "containerStatuses": [{"name": "main"}]},
        "PodObjectMeta": {"uid": "uid-of-the-pod", "creationTimestamp": None},
        "BoundDeviceID": "GPU-1",
        "PodManagerPort": 50052,
    }
    share_pod = SHARE_PODS.one(text(document))
    assert share_pod.annotations == {
        "kubeshare/GPUID": "zxcvb",
        SHARE_POD: "uid-of-the-pod",
        BOUND_DEVICE: "GPU-1",
        MANAGER_PORT: "50052",
    }
    assert share_pod.ref.uid == "uid-web"
    assert share_pod.phase == "Running"
    assert SHARE_PODS.page(pod_list(document)).objects == (share_pod,)


def test_a_sharepod_without_status_is_not_bound():
    document = pod(spec={}, status={"PodStatus": None, "PodObjectMeta": None, "BoundDeviceID": ""})
    assert SHARE_PODS.one(text(document)).annotations == {SHARE_POD: ""}


def test_nobody_writes_a_sharepods_status_into_a_pods_annotations():
    forged = {SHARE_POD: "x", BOUND_DEVICE: "GPU-1", MANAGER_PORT: "1", "vgpu.dev/reconcile": "no"}
    document = pod(meta={"annotations": forged})
    assert PODS.one(text(document)).annotations == {"vgpu.dev/reconcile": "no"}


# ---------------------------------------------------------------- nodes


def node(name="node1", **parts):
    return {"kind": "Node", "metadata": {"name": name}} | parts


def test_everything_that_the_product_needs_of_a_node_is_kept():
    document = node(
        metadata={
            "name": "node1",
            "uid": "u1",
            "resourceVersion": "4",
            "annotations": {"hamivgpu": "2025-01-01T00:00:00Z", "kubeshare/gpu_info": "GPU-1:1,"},
            "labels": {"gpushare": "true", "kubernetes.io/os": "linux"},
        },
        spec={"unschedulable": True},
        status={
            "capacity": {"cpu": "64", "aliyun.com/gpu-mem": "32552", "aliyun.com/gpu-count": "2"},
            "allocatable": {"aliyun.com/gpu-mem": "32k"},
            "addresses": [
                {"type": "Hostname", "address": "node1"},
                {"type": "InternalIP", "address": "10.0.0.1"},
            ],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    )
    assert NODES.one(text(document)) == Node(
        name="node1",
        resource_version="4",
        annotations={"hamivgpu": "2025-01-01T00:00:00Z", "kubeshare/gpu_info": "GPU-1:1,"},
        labels={"gpushare": "true"},
        capacity={"aliyun.com/gpu-mem": 32552, "aliyun.com/gpu-count": 2},
        allocatable={"aliyun.com/gpu-mem": 32000, "aliyun.com/gpu-count": 0},
        address="10.0.0.1",
        ready=True,
        unschedulable=True,
        uid="u1",
    )
    page = text({"items": [document], "metadata": {"continue": "more", "resourceVersion": "7"}})
    assert NODES.page(page) == ObjectPage((NODES.one(text(document)),), "more", "7", 1)


def test_a_node_without_a_status_is_not_ready():
    assert NODES.one(text(node())) == Node("node1")


def test_half_a_unit_on_a_node_is_refused_by_name():
    document = node(status={"allocatable": {"tencent.com/vcuda-core": "500m"}})
    assert "node1: tencent.com/vcuda-core" in refusal(NODES.one, text(document))


def test_a_capacity_is_returned_as_it_is_written():
    document = node(status={"capacity": {"cpu": "8", "example.com/fpga": "2k", "pods": 110}})
    assert NODE_CAPACITIES.one(text(document)) == {
        "cpu": "8",
        "example.com/fpga": "2k",
        "pods": "110",
    }
    assert NODE_CAPACITIES.one(text(node())) == {}


def test_the_data_of_a_configmap_may_be_missing():
    document = {"metadata": {"name": "a"}}
    assert CONFIG_MAPS.one(text({**document, "data": {"gpus": "0,1"}})) == ({"gpus": "0,1"}, "")
    assert CONFIG_MAPS.one(text(document)) == ({}, "")


# ---------------------------------------------------------------- events


def event(kind, about):
    return text({"type": kind, "object": about})


every_watch = pytest.mark.parametrize("decode", [PODS.event, NODES.event, SHARE_PODS.event])


def test_a_watch_event_has_the_changed_object():
    document = {"kind": "Pod", **pod(meta={"resourceVersion": "5"})}
    assert PODS.event(event("MODIFIED", document)) == WatchEvent(
        EventType.MODIFIED, "5", PODS.one(text(document))
    )
    document = {"kind": "Node", **node()}
    assert NODES.event(event("DELETED", document)).object == Node("node1")
    share_pod = {"kind": "SharePod", **pod(spec={})}
    assert SHARE_PODS.event(event("ADDED", share_pod)).object == SHARE_PODS.one(text(share_pod))


def test_a_pod_that_no_longer_shares_has_an_event_too():
    change = PODS.event(event("MODIFIED", {"kind": "Pod", **plain()}))
    assert change.object is not None
    assert not shares_gpus(change.object)


@every_watch
def test_a_bookmark_has_a_version_and_no_object(decode):
    bookmark = {
        "kind": "Pod",
        "metadata": {"resourceVersion": "12746", "creationTimestamp": None},
        "spec": {"containers": None},
        "status": {},
    }
    assert decode(event("BOOKMARK", bookmark)) == WatchEvent(EventType.BOOKMARK, "12746")


@every_watch
def test_the_end_of_a_watch_comes_in_the_servers_words(decode):
    gone = {
        "kind": "Status",
        "status": "Failure",
        "message": "too old resource version: 1 (2)",
        "reason": "Expired",
        "code": 410,
    }
    assert decode(event("ERROR", gone)) == WatchEvent(
        EventType.ERROR, error=ApiError(410, "Expired", "too old resource version: 1 (2)")
    )


@every_watch
def test_an_event_of_another_kind_is_malformed(decode):
    """Also one that would pass for the right kind by what it has."""
    assert "'Secret'" in refusal(decode, event("ADDED", {"kind": "Secret"}))
    assert "'Secret'" in refusal(decode, event("ADDED", {"kind": "Secret", **pod()}))
    assert "''" in refusal(decode, event("ADDED", pod()))
    refusal(decode, event("RENAMED", {"kind": "Pod", **pod()}))


@every_watch
def test_a_bookmark_and_an_error_are_recognised_by_their_type_alone(decode):
    """Whatever object they carry."""
    document = pod(meta={"resourceVersion": "9"})
    for kind in ("Pod", "Node", "SharePod"):
        assert decode(event("BOOKMARK", {"kind": kind, **document})) == WatchEvent(
            EventType.BOOKMARK, "9"
        )
        assert decode(event("ERROR", {"kind": kind, **document})).error == ApiError()


def test_an_event_that_cannot_be_read_names_its_object():
    broken = {"kind": "Pod", **pod("web-7", spec={"containers": 3})}
    assert str(PODS.event(event("ADDED", broken)).object).startswith("Pod team/web-7: ")
    broken = {"kind": "Pod", **pod("web-8", status={"phase": 3})}
    assert str(PODS.event(event("ADDED", broken)).object).startswith("Pod team/web-8: ")


# ---------------------------------------------------------------- who wrote a status, and when


def written(manager, time, subresource="status"):
    return {"manager": manager, "subresource": subresource, "time": time, "fieldsV1": {"f:x": {}}}


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        (None, None),
        ([], None),
        ([written("kubectl", "2025-01-01T00:00:00Z", "")], None),
        ([written("kubelet", None)], None),
        ([written("kubelet", "2025-01-01T00:00:10Z")], 10),
        # The kubelet's newest, whatever others have written since.
        (
            [
                written("kubelet", "2025-01-01T00:00:20Z"),
                written("kubelet", "2025-01-01T00:00:10Z"),
                written("kube-controller-manager", "2025-01-01T00:01:00Z"),
                written("kubectl", "2025-01-01T00:02:00Z", ""),
            ],
            20,
        ),
        # Where the kubelet never wrote, the newest of the others.
        (
            [
                written("kube-scheduler", "2025-01-01T00:00:30Z"),
                written("kube-controller-manager", "2025-01-01T00:00:40Z"),
            ],
            40,
        ),
    ],
)
def test_the_time_of_a_status_comes_from_the_managed_fields(fields, at):
    new_year = 1735689600.0
    for phase in ("Pending", "Failed"):
        document = pod(meta={"managedFields": fields}, status={"phase": phase})
        assert PODS.one(text(document)).status_at == (None if at is None else new_year + at)
    running = pod(meta={"managedFields": fields}, status={"phase": "Running"})
    assert PODS.one(text(running)).status_at is None


@pytest.mark.parametrize("phase", ["Failed", "Running"])
def test_managed_fields_that_cannot_be_read_are_ignored(phase):
    decoded = PODS.one(text(pod(meta={"managedFields": [{"manager": 3}]}, status={"phase": phase})))
    assert (decoded.phase, decoded.status_at) == (phase, None)


def test_gates_and_the_restart_policy_come_from_the_spec():
    plainest = PODS.one(text(pod()))
    assert (plainest.gated, plainest.restart_policy, plainest.started_at) == (False, "Always", None)
    spec = {"schedulingGates": [{"name": "a.io/b"}], "restartPolicy": "Never"}
    decoded = PODS.one(text(pod(spec=spec, status={"startTime": "2025-01-01T00:00:00Z"})))
    assert (decoded.gated, decoded.restart_policy, decoded.started_at) == (
        True,
        "Never",
        1735689600.0,
    )


# ---------------------------------------------------------------- Leases and Events


def test_a_lease_is_read_with_its_microseconds():
    spec = {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2025-01-01T00:00:00.250000Z",
        "renewTime": "2025-01-01T00:00:05.000001Z",
        "leaseTransitions": 2,
    }
    document = {"kind": "Lease", "metadata": metadata("l", resourceVersion="7"), "spec": spec}
    assert LEASES.one(text(document)) == Lease(
        "team", "l", "7", "a", 15, 1735689600.25, 1735689605.000001, 2
    )
    nothing = dict.fromkeys(spec)
    assert LEASES.one(text({**document, "spec": nothing})) == Lease("team", "l", "7")


def test_an_event_without_a_count_was_never_counted():
    document = {"metadata": metadata("e")}
    assert EVENTS.one(text(document)) == 0
    assert EVENTS.one(text({**document, "count": None})) == 0
    assert EVENTS.one(text({**document, "count": 3})) == 3


# ---------------------------------------------------------------- dumps


def test_a_dump_of_many_kinds_is_sorted_out():
    config_map = {"kind": "ConfigMap", "metadata": {"name": "unhealthy-gpu-node1"}}
    items = [
        {"apiVersion": "v1", **node()},
        {"kind": "Pod", "apiVersion": "v1", **pod("a")},
        {"kind": "Pod", **plain()},
        {"kind": "SharePod", "apiVersion": "kubeshare.nthu/v1", **pod("s", spec={})},
        config_map | {"data": {"gpus": "0,2"}},
        {"kind": "ConfigMap", "metadata": {"name": "unhealthy-gpu-node2"}},
        {"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}, "data": 5},
        {"kind": "Node", "apiVersion": "management.cattle.io/v3", "metadata": {"name": "c-1:m-2"}},
        {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"containers": 5}},
    ]
    dump = decode_dump(text({"kind": "List", "apiVersion": "v1", "items": items}))
    assert [one.name for one in dump.nodes] == ["node1"]
    assert [one.ref.name for one in dump.pods] == ["a"]
    assert [one.ref.name for one in dump.share_pods] == ["s"]
    assert dump.unhealthy == {"node1": "0,2", "node2": ""}
    assert dump.total == 2
    assert dump.others == {"ConfigMap": 1, "Deployment": 1, "Node": 1}


def test_a_raw_page_and_a_single_object_are_dumps_too():
    assert len(decode_dump(pod_list(pod("a"), plain()), keep=Keep.ALL).pods) == 2
    assert decode_dump(text({"kind": "Pod", **pod("a")})).pods[0].ref.name == "a"
    assert decode_dump(text(node())).nodes == (Node("node1"),)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"kind":"List","items":{}}',
        b'{"kind":"List","items":[5]}',
        b'{"kind":"List","items":[{"kind":"Pod"}]}',
        b'{"kind":"Pod","metadata":{"name":"a\xff","namespace":"b","uid":"c"}}',
        b'{"kind":"List","items":[{"kind":"Node","metadata":{"name":1}}]}',
        b'{"kind":' + b"[" * 100_000,
        b'{"kind":"Pod","metadata":{"name":"\\ud800","namespace":"b","uid":"c"}}',
    ],
    ids=lambda content: content[:60],
)
def test_what_is_not_a_dump_is_malformed(content):
    refusal(decode_dump, content)


@pytest.mark.parametrize(
    "spec", [b'{"containers":{}}', b'{"priority":' + b"9" * 5000 + b"}", b'{"priority":1e99}']
)
def test_the_object_of_a_dump_whose_fault_it_is_is_named(spec):
    broken = text({"kind": "Pod", **pod("b", spec=5)}).replace(b'"spec": 5', b'"spec":' + spec)
    for dump in (b'{"kind":"List","items":[' + text(node()) + b"," + broken + b"]}", broken):
        (bad,) = decode_dump(dump).malformed
        assert str(bad).startswith("Pod team/b: ")


# ---------------------------------------------------------------- quantities


@pytest.mark.parametrize(
    ("quantity", "units"),
    [
        ("0", 0),
        ("8", 8),
        ("8k", 8000),
        ("1Ki", 1024),
        ("2M", 2_000_000),
        ("1Gi", 2**30),
        ("2000m", 2),
        ("8.0", 8),
        ("1.5k", 1500),
        ("+3", 3),
        (".5k", 500),
        ("1e3", 1000),
        ("1E3", 1000),
        ("10e-1", 1),
        ("1E", 10**18),
        ("7Ei", 7 * 2**60),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("8Ei", None),
        ("1e99", None),
        ("1500m", None),
        ("0.5", None),
        ("-1", None),
        ("1K", None),
        ("1ki", None),
        ("1 ", None),
        ("", None),
        (".", None),
        ("k", None),
        ("\u0663", None),
        ("0x10", None),
        ("1_000", None),
        ("1e", None),
        ("9" * 10_000, None),
    ],
)
def test_a_quantity_is_read_exactly_or_not_at_all(quantity, units):
    assert whole(quantity) == units


SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20, "m": Fraction(1, 1000)}


@given(st.integers(0, 10**9), st.integers(0, 99), st.sampled_from(sorted(SUFFIXES)))
def test_a_quantity_is_its_number_times_its_suffix(number, hundredths, suffix):
    exact = (number + Fraction(hundredths, 100)) * SUFFIXES[suffix]
    units = whole(f"{number}.{hundredths:02}{suffix}")
    assert units == (exact if exact.denominator == 1 else None)


@given(st.text(max_size=30))
def test_any_text_is_a_quantity_or_not(quantity):
    units = whole(quantity)
    assert units is None or 0 <= units < 2**63


# ---------------------------------------------------------------- laws

keys = st.sampled_from(
    ["app", "volcano.sh/vgpu-node", "sharedgpu/gpu_mem", "hamivgpu", "kubeshare/GPUID", SHARE_POD]
)
texts = st.dictionaries(keys, st.text(max_size=5), max_size=3)
quantities = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "example.com/x", "tencent.com/vcuda-core"]),
    st.sampled_from(["0", "1", "1k", "1500m", "", 0, 2, 0.5]),
    max_size=3,
)
containers = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "b"]),
            "resources": st.fixed_dictionaries(
                {}, optional={"limits": quantities} | {"requests": quantities}
            ),
        }
    ),
    max_size=2,
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.text(max_size=3), "namespace": st.text(max_size=3), "uid": st.text()},
            optional={"annotations": texts, "labels": texts},
        ),
        "spec": st.fixed_dictionaries(
            {}, optional={"containers": containers, "initContainers": containers}
        ),
    }
)


@given(st.lists(pods, max_size=4))
def test_what_is_dropped_early_is_exactly_what_does_not_share(items):
    page = pod_list(*items)
    everything = PODS.page(page, keep=Keep.ALL)
    assert PODS.page(page).objects == tuple(filter(shares_gpus, everything.objects))
    assert everything.objects == tuple(PODS.one(text(item)) for item in items)


@given(pods)
def test_a_pod_is_the_same_by_every_way_in(document):
    alone = PODS.one(text(document))
    document = {"kind": "Pod", **document}
    assert PODS.event(event("ADDED", document)).object == alone
    assert decode_dump(text(document), keep=Keep.ALL).pods == (alone,)
    assert decode_dump(text({"kind": "List", "items": [document]}), keep=Keep.ALL).pods == (alone,)


DECODERS = (
    NODE_CAPACITIES.one,
    CONFIG_MAPS.one,
    PODS.page,
    SHARE_PODS.page,
    NODES.page,
    PODS.one,
    SHARE_PODS.one,
    NODES.one,
    LEASES.one,
    EVENTS.one,
    PODS.event,
    NODES.event,
    SHARE_PODS.event,
    decode_dump,
)
VALID = text(
    {
        "kind": "List",
        "type": "ADDED",
        "object": {"kind": "Pod", **pod()},
        "items": [
            {
                "kind": "Pod",
                **pod(
                    meta={"annotations": {"tencent.com/a": "b"}, "creationTimestamp": None},
                    status={"containerStatuses": [{"name": "main", "state": {"running": {}}}]},
                ),
            },
            node(status={"capacity": {"aliyun.com/gpu-mem": "8k"}}),
        ],
    }
)


@st.composite
def mutated(draw):
    """A valid dump with a slice of it replaced."""
    start = draw(st.integers(0, len(VALID)))
    end = draw(st.integers(start, min(len(VALID), start + 20)))
    return VALID[:start] + draw(st.binary(max_size=6)) + VALID[end:]


@given(st.one_of(st.binary(max_size=200), mutated()), st.sampled_from(DECODERS))
def test_any_bytes_give_values_or_the_typed_error(content, decode):
    try:
        decode(content)
    except SourceError as error:
        assert error.reason is Reason.MALFORMED  # noqa: PT017
