"""Pods with KubeShare 2's labels: what is read of them, and what the controllers do with them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kubeshare.bodies import binding_annotations, labelled_patch
from kubeshare.decoders import CLUSTER_PODS
from kubeshare.labelled_pods import SCHEDULER_NAME, VARIABLES
from kubeshare.model import ConditionType, GpuRequest
from kubeshare.node_files import tables_of
from kubeshare.reasons import SharePodReason
from kubeshare.steps import refused_patch
from tests.kubeshare.model_cluster import ModelCluster, node, share_pod
from tests.kubeshare.model_controllers import Controllers, require_invariants, settle
from tests.kubeshare.test_controllers import MortalControllers
from vgpu.kube.kinds import PODS
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.codec import KubeShare

WIRED = [
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}
    for name, key in VARIABLES.items()
]


def content(name="a", milli=500, gib=1, *, labels=None, env=WIRED, annotations=None, **spec):
    """A pod as the API server has it; labels that are None are left out."""
    numbers = {
        "sharedgpu/gpu_request": f"{milli / 1000}",
        "sharedgpu/gpu_limit": "1.0",
        "sharedgpu/gpu_mem": str(gib * GIB),
        **(labels or {}),
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {key: text for key, text in numbers.items() if text is not None},
            "annotations": annotations or {},
        },
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "containers": [{"name": "main", "env": env}],
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def read(*args, **fields):
    return CLUSTER_PODS.one(json.dumps(content(*args, **fields)).encode(), "Pod")


def test_a_pod_with_labels_is_its_own_share_pod():
    labelled = read(milli=300, gib=2).labelled
    assert labelled.key == "ns/a/pod"
    assert labelled.needs_place
    assert not labelled.problem
    assert labelled.request == GpuRequest(300, 1000, 2 * GIB)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"labels": {"sharedgpu/gpu_mem": None}}, "gpu_mem"),
        ({"labels": {"sharedgpu/gpu_limit": None}}, "gpu_limit"),
        ({"labels": {"sharedgpu/gpu_limit": "0.4"}}, "above the limit"),
        ({"labels": {"sharedgpu/gpu_request": "2", "sharedgpu/gpu_limit": "2"}}, "whole GPUs"),
        ({"labels": {"sharedgpu/group_name": "gang"}}, "group_name"),
        ({"labels": {"sharedgpu/gpu_model": "T4"}}, "gpu_model"),
        (
            {"labels": {"sharedgpu/gpu_request": "0", "sharedgpu/gpu_limit": "0"}},
            "another scheduler",
        ),
        ({"env": []}, "NVIDIA_VISIBLE_DEVICES is not from the annotation sharedgpu/gpu_uuid"),
        ({"env": WIRED[:1]}, "POD_MANAGER_PORT is not from"),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, "NVIDIA_VISIBLE_DEVICES"),
        ({"annotations": {"vgpu.dev/virtual-gpu": "abcde"}}, "virtual-gpu"),
        ({"annotations": {"vgpu.dev/virtual-gpu": "n1/a b"}}, "virtual-gpu"),
    ],
)
def test_a_pod_that_cannot_be_placed_has_the_reason(fields, problem):
    labelled = read(**fields).labelled
    assert problem in labelled.problem
    assert not labelled.needs_place


@pytest.mark.parametrize(
    "fields",
    [
        {"schedulerName": "default-scheduler"},
        {"schedulerName": ""},
    ],
)
def test_a_pod_of_another_scheduler_is_none_of_ours(fields):
    assert read(**fields).labelled is None


def test_a_gated_pod_waits_for_its_gate():
    assert not read(schedulingGates=[{"name": "quota"}]).labelled.needs_place


def test_a_pod_that_its_user_has_bound_is_not_placed_again():
    labelled = read(nodeName="n1", env=[]).labelled
    assert not labelled.needs_place
    assert labelled.place is None


TEXTS = st.text(max_size=12) | st.sampled_from(["0.5", "1.0", "1", "50051", "GPU-a", "n1/abcde"])


@given(
    st.dictionaries(
        st.sampled_from([f"sharedgpu/gpu_{name}" for name in ("request", "limit", "mem", "model")]),
        TEXTS,
    ),
    st.dictionaries(st.sampled_from([*VARIABLES.values(), "vgpu.dev/virtual-gpu"]), TEXTS),
    st.sampled_from([WIRED, None, [{"name": "A", "valueFrom": None}], [{"valueFrom": {}}]]),
    st.sampled_from(["", "n1"]),
)
def test_any_texts_of_a_pod_are_a_request_a_problem_or_a_pod_that_is_skipped(
    labels, annotations, env, bound_to
):
    pod = content(labels=labels, annotations=annotations, env=env, nodeName=bound_to)
    labelled = CLUSTER_PODS.one(json.dumps(pod).encode(), "Pod").labelled
    if labelled.problem:
        assert not labelled.needs_place
    elif bound_to:
        assert labelled.is_tenant == bool(labelled.bound)
    else:
        assert labelled.request.request_milli <= labelled.request.limit_milli <= 1000


@pytest.mark.parametrize(("text", "port"), [("1", 1), ("50051", 50051), ("500510", 0), ("x", 0)])
def test_a_pods_port_is_that_of_its_environment(text, port):
    unlabelled = dict.fromkeys(f"sharedgpu/gpu_{each}" for each in ("request", "limit", "mem"))
    pod = content(labels=unlabelled, env=[{"name": "POD_MANAGER_PORT", "value": text}])
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", "name": "a", "uid": "u"}
        | {"controller": True}
    ]
    assert CLUSTER_PODS.one(json.dumps(pod).encode(), "Pod").port == port


def test_the_reason_of_a_pod_that_waits_is_in_its_condition():
    labelled = read().labelled
    labelled = structs.replace(
        labelled, copied={"conditions": [{"type": "Other", "status": "True"}]}
    )
    patch = refused_patch(labelled, SharePodReason.UNSCHEDULABLE, "0 of 3 nodes take it")
    body = labelled_patch(patch, 0.0)
    assert body["metadata"] == {"uid": "uid-a", "resourceVersion": "1"}
    other, condition = body["status"]["conditions"]
    assert other["type"] == "Other"
    assert condition == {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0 of 3 nodes take it",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }


def test_other_programs_read_the_binding_as_kubeshare_2s():
    labelled = structs.replace(read(milli=250, gib=3).labelled, bound="GPU-a", port=50051)
    pod = content(milli=250, gib=3, annotations=binding_annotations(labelled), nodeName="n1")
    claim = KubeShare().claim(PODS.one(json.dumps(pod).encode()))
    ((share,),) = (allocation.shares for allocation in claim.allocations)
    assert (share.device, share.cores_milli, share.memory_bytes) == ("GPU-a", 250, 3 * GIB)


# ---------------------------------------------------------------- with the controllers


def started(*names, nodes=None):
    cluster = ModelCluster(*(node(*each) for each in (nodes or {"n1": 2}).items()))
    controllers = Controllers(cluster)
    for name in names:
        cluster.store(read(name))
    settle(cluster, controllers)
    return cluster, controllers


def bound(cluster, name):
    labelled = cluster.pods[f"ns/{name}"].labelled
    return labelled.node, labelled.bound, labelled.port


def test_labelled_pods_and_share_pods_share_a_gpu():
    cluster, controllers = started("a")
    cluster.store(share_pod("s", 500))
    settle(cluster, controllers)
    require_invariants(cluster)
    assert bound(cluster, "a") == ("n1", "GPU-n1-0", 50051)
    assert cluster.share_pods["ns/s"].bound == "GPU-n1-0"
    assert cluster.share_pods["ns/s"].port == 50052
    cluster.store(read("b", 100))
    settle(cluster, controllers)
    assert bound(cluster, "b") == ("n1", "GPU-n1-1", 50053)


def test_the_holder_goes_with_the_last_labelled_pod():
    cluster, controllers = started("a", "b")
    for name in "ab":
        assert len(cluster.holders()) == 1
        cluster.remove(cluster.pods[f"ns/{name}"])
        settle(cluster, controllers)
    assert not cluster.holders()


def test_a_labelled_pod_that_has_ended_frees_its_share():
    cluster, controllers = started("a")
    cluster.turn(cluster.pods["ns/a"], "Succeeded")
    settle(cluster, controllers)
    assert not cluster.holders()


def test_a_labelled_pod_of_the_name_of_a_share_pod_is_its_own_tenant():
    cluster, controllers = started("a")
    cluster.store(share_pod("a", 100))
    settle(cluster, controllers)
    stored = cluster.share_pods["ns/a"]
    assert stored.condition(ConditionType.READY).reason == SharePodReason.POD_EXISTS
    assert bound(cluster, "a")[1] == "GPU-n1-0"


def test_a_labelled_pod_on_another_gpu_than_reserved_is_evicted():
    cluster, controllers = started("a")
    (holder,) = cluster.holders()
    cluster.remove(holder)
    cluster.native_pod("n1")
    settle(cluster, controllers)
    assert [(pod.ref.name, reason) for pod, reason in cluster.evicted] == [
        ("a", SharePodReason.GPU_CHANGED)
    ]


def test_a_labelled_pod_that_waits_leaves_a_lost_node():
    cluster = ModelCluster(node("n1", 1), node("n2", 1))
    controllers = Controllers(cluster)
    cluster.store(read("a"))
    cluster.deliver(controllers.state)
    controllers.round()
    assert cluster.pods["ns/a"].labelled.node == "n1"
    assert not cluster.pods["ns/a"].pod.node, "it is not bound yet"
    cluster.remove_node("n1")
    settle(cluster, controllers)
    assert bound(cluster, "a")[0] == "n2"


def test_a_labelled_pod_whose_room_a_user_takes_goes_elsewhere():
    cluster = ModelCluster(node("n1", 2))
    controllers = Controllers(cluster)
    cluster.store(read("z"))
    cluster.deliver(controllers.state)
    controllers.round()
    chosen = cluster.pods["ns/z"].labelled.gpuid
    cluster.store(share_pod("u", 600, node="n1", gpuid=chosen))
    settle(cluster, controllers)
    require_invariants(cluster)
    assert cluster.share_pods["ns/u"].bound == "GPU-n1-0", "it was bound first"
    assert bound(cluster, "z")[1] == "GPU-n1-1"


@pytest.mark.parametrize(
    ("name", "plant", "scenario"),
    [
        (
            "_displaced",
            lambda view, gpu: None,
            test_a_labelled_pod_on_another_gpu_than_reserved_is_evicted,
        ),
        (
            "has_room",
            lambda view, gpu: True,
            test_a_labelled_pod_whose_room_a_user_takes_goes_elsewhere,
        ),
    ],
)
def test_a_planted_defect_is_found(name, plant, scenario, monkeypatch):
    monkeypatch.setattr(f"kubeshare.labelled_pods.{name}", plant)
    with pytest.raises(AssertionError):
        scenario()


def test_a_kill_after_any_write_leads_to_the_same_bindings():
    def way(dies_after):
        cluster = ModelCluster(node("n1", 2))
        controllers = MortalControllers(cluster, dies_after)
        cluster.store(share_pod("s", 300))
        for name in "abc":
            cluster.store(read(name))
        settle(cluster, controllers)
        cluster.turn(cluster.pods["ns/a"], "Succeeded")
        cluster.remove(cluster.pods["ns/b"])
        settle(cluster, controllers)
        require_invariants(cluster)
        places = {name: pod.labelled.bound for name, pod in cluster.pods.items() if pod.labelled}
        return controllers.writes, sorted(places), len(cluster.holders()), bool(cluster.evicted)

    writes, *outcome = way(0)
    assert writes > 10
    for number in range(1, writes + 1):
        assert way(number)[1:] == tuple(outcome), number


def test_a_user_who_removes_the_annotations_of_a_bound_pod_frees_nothing():
    _, controllers = started("a")
    before = controllers.state.share_pods["ns/a/pod"]
    pod = content("a", annotations={}, nodeName="n1")
    pod["metadata"]["resourceVersion"] = "100000"
    pod["status"]["phase"] = "Running"
    controllers.state.set_pod("ns/a", CLUSTER_PODS.one(json.dumps(pod).encode()))
    after = controllers.state.share_pods["ns/a/pod"]
    assert (after.bound, after.port, after.place) == (before.bound, before.port, before.place)
    assert controllers.state.virtual_gpu(before.place).users
    pod["status"]["phase"] = "Succeeded"
    pod["metadata"]["resourceVersion"] = "100001"
    controllers.state.set_pod("ns/a", CLUSTER_PODS.one(json.dumps(pod).encode()))
    assert not controllers.state.virtual_gpu(before.place).users


def test_an_old_event_does_not_undo_a_binding():
    cluster, controllers = started("a")
    before = read("a")
    placed = cluster.pods["ns/a"]
    unbound = structs.replace(placed, labelled=structs.replace(placed.labelled, bound="", port=0))
    controllers.state.set_pod("ns/a", unbound)
    assert controllers.state.share_pods["ns/a/pod"].bound == placed.labelled.bound
    again = structs.replace(
        before.labelled,
        pod=structs.replace(
            before.labelled.pod, ref=structs.replace(before.labelled.pod.ref, uid="another")
        ),
    )
    controllers.state.set_share_pod("ns/a/pod", again)
    assert not controllers.state.share_pods["ns/a/pod"].bound


def test_the_files_of_a_node_have_the_addresses_of_a_pod_with_labels():
    annotations = {
        "vgpu.dev/virtual-gpu": "n1/abcde",
        "sharedgpu/gpu_uuid": "GPU-0a1b2c3d-0000-0000-0000-000000000001",
        "sharedgpu/gpu_manager_port": "50051",
    }
    pod = content(annotations=annotations, nodeName="n1")
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}
    labelled = CLUSTER_PODS.one(json.dumps(pod).encode(), "Pod").labelled
    (table,) = tables_of([labelled], "n1").values()
    (tenant,) = table.tenants
    assert (tenant.pod, tenant.addresses) == ("a", ("10.0.0.7",))
