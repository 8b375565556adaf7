"""Which nodes a SharePod may be placed on, from its text as a user writes it."""

import json

import pytest
from msgspec import structs

from kubeshare.decoders import SHARE_POD_OBJECTS
from kubeshare.model import ConditionType, NodeAmounts, NodeNeeds
from kubeshare.place_choice import node_refusal
from kubeshare.reasons import SharePodReason, UnplacedReason
from tests.kubeshare.model_cluster import ModelCluster, node, share_pod
from tests.kubeshare.model_controllers import Controllers, settle, settled
from vgpu.model.taints import Taint
from vgpu.model.units import GIB

BIG = NodeAmounts(cpu_milli=5000, pods=1)
TAINT = (Taint("gpu", "yes", "NoSchedule"),)


@pytest.mark.parametrize(
    ("changes", "needs", "reason"),
    [
        ({}, {}, None),
        ({"is_ready": False}, {}, UnplacedReason.NODE_NOT_READY),
        ({"is_cordoned": True}, {}, UnplacedReason.CORDONED),
        ({"taints": TAINT}, {}, UnplacedReason.TAINT),
        ({"taints": (Taint("gpu", "", "PreferNoSchedule"),)}, {}, None),
        ({}, {"selector": {"zone": "a"}}, UnplacedReason.SELECTOR),
        ({"labels": {"zone": "a"}}, {"selector": {"zone": "a"}}, None),
        ({}, {"amounts": NodeAmounts(4000, 16 * GIB, 1, 110)}, None),  # all that there is
        ({}, {"amounts": BIG}, UnplacedReason.CPU),
        ({}, {"amounts": NodeAmounts(memory_bytes=17 * GIB)}, UnplacedReason.MEMORY),
        ({}, {"amounts": NodeAmounts(pods=111)}, UnplacedReason.PODS),
        ({}, {"terms": ()}, UnplacedReason.SELECTOR),
    ],
)
def test_a_node_is_refused_for_its_reason(changes, needs, reason):
    each = structs.replace(node("n1"), **changes)
    assert node_refusal(each, NodeNeeds(**needs), NodeAmounts()) == reason


def test_a_share_pod_that_no_node_takes_has_the_number_of_nodes_by_reason():
    cluster = ModelCluster(
        node("n1", taints=TAINT),
        node("n2", is_cordoned=True),
        node("n3", 0),
        node("n4", taints=TAINT),
    )
    controllers = Controllers(cluster)
    cluster.store(share_pod("a"))
    settle(cluster, controllers)
    condition = cluster.share_pods["ns/a"].condition(ConditionType.SCHEDULED)
    assert (condition.status, condition.reason) == ("False", SharePodReason.UNSCHEDULABLE)
    assert condition.message.startswith(
        f"0 of 4 nodes take it: 2 × {UnplacedReason.TAINT.explanation}"
    )


def test_a_tainted_node_keeps_nobody_else_waiting():
    """Upstream's only worker waits for ever for a node with a taint."""
    cluster = ModelCluster(node("n1", taints=TAINT), node("n2"))
    controllers = Controllers(cluster)
    cluster.store(share_pod("a"))
    settled(cluster, controllers)
    assert cluster.share_pods["ns/a"].node == "n2"


# ---------------------------------------------------------------- as a user writes it


def read(**spec):
    """A SharePod of this spec, with a pod that has succeeded."""
    content = {
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "main"}], **spec},
        "status": {"PodStatus": {"phase": "Succeeded"}},
    }
    return SHARE_POD_OBJECTS.one(json.dumps(content).encode(), "SharePod")


@pytest.mark.parametrize(
    ("spec", "is_finished"),
    [
        ({}, False),
        ({"restartPolicy": ""}, False),
        ({"restartPolicy": None}, False),
        ({"restartPolicy": "Always"}, False),
        ({"restartPolicy": "OnFailure"}, True),
    ],
    ids=str,
)
def test_a_restart_policy_that_is_not_set_is_always(spec, is_finished):
    """A CRD has no defaults; upstream then never creates the pod again, and counts it for ever."""
    assert read(**spec).is_finished == is_finished


def affinity(*requirements, field="matchExpressions"):
    listed = [
        {"key": key, "operator": operator, "values": list(values)}
        for key, operator, *values in requirements
    ]
    terms = [{field: listed}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        (affinity(("zone", "In", "a", "b")), True),
        (affinity(("zone", "In", "b")), False),
        (affinity(("zone", "NotIn", "b")), True),
        (affinity(("other", "NotIn", "b")), True),
        (affinity(("zone", "NotIn", "a")), False),
        (affinity(("zone", "Exists")), True),
        (affinity(("other", "Exists")), False),
        (affinity(("other", "DoesNotExist")), True),
        (affinity(("zone", "DoesNotExist")), False),
        (affinity(("rank", "Gt", "4")), True),
        (affinity(("rank", "Gt", "5")), False),
        (affinity(("rank", "Lt", "6")), True),
        (affinity(("zone", "Lt", "6")), False),
        (affinity(("zone", "Near", "a")), False),
        (affinity(("zone", "In", "a"), ("rank", "Gt", "9")), False),
        (affinity(("metadata.name", "In", "n1"), field="matchFields"), True),
        (affinity(("metadata.name", "In", "n2"), field="matchFields"), False),
        (affinity(("metadata.uid", "In", "n1"), field="matchFields"), False),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "a", "other": "a"}}, False),
    ],
    ids=str,
)
def test_selectors_and_node_affinity_are_as_kube_scheduler_reads_them(spec, fits):
    each = node("n1", labels={"zone": "a", "rank": "5"})
    refusal = node_refusal(each, read(**spec).needs, NodeAmounts())
    assert refusal == (None if fits else UnplacedReason.SELECTOR)


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Near", "value": "yes"}, False),
    ],
    ids=str,
)
def test_taints_are_tolerated_as_by_kube_scheduler(toleration, fits):
    each = node("n1", taints=TAINT)
    refusal = node_refusal(each, read(tolerations=[toleration]).needs, NodeAmounts())
    assert refusal == (None if fits else UnplacedReason.TAINT)


def requesting(amount, **fields):
    return {"name": "c", "resources": {"requests": {"cpu": amount}}, **fields}


@pytest.mark.parametrize(
    ("spec", "milli"),
    [
        ({"containers": [requesting("500m"), requesting("1")]}, 1500),
        ({"initContainers": [requesting("3")], "containers": [requesting("1")]}, 3000),
        (
            {
                "initContainers": [requesting("2", restartPolicy="Always")],
                "containers": [requesting("1")],
            },
            3000,
        ),
        ({"containers": [requesting("1")], "overhead": {"cpu": "250m"}}, 1250),
    ],
    ids=["sum", "init container", "sidecar", "overhead"],
)
def test_a_share_pod_needs_what_its_pod_needs_at_its_peak(spec, milli):
    assert read(**spec).needs.amounts.cpu_milli == milli
