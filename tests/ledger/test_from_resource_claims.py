"""The API server's ResourceClaims in the ledgers of a cluster."""

import json

from tests.support.dra import published, resource_claim_json, resource_slice, result
from vgpu.kube.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from vgpu.ledger import ConflictKind
from vgpu.ledger.cluster import cluster
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import GIB

A = "GPU-00000001-0000-4000-8000-000000000001"
B = "GPU-00000002-0000-4000-8000-000000000002"
SLICE = resource_slice(published("gpu-0", A), published("gpu-1", B))


def pod(name, **fields):
    fields = {
        "containers": (Container("main"),),
        "node": "gpu-1",
        "uses_resource_claims": True,
    } | fields
    return Pod(PodRef(f"uid-{name}", "ml", name), **fields)


PODS = (pod("a"), pod("b"))


def users(*names):
    return [(name, f"uid-{name}") for name in names]


def ledger(*resource_claims, slices=(SLICE,), pods=PODS, node="gpu-1"):
    def decoded(kind, items):
        return tuple(kind.one(json.dumps(item).encode()) for item in items)

    known = ClusterResourceClaims(
        decoded(RESOURCE_CLAIMS, resource_claims), decoded(RESOURCE_SLICES, slices), tuple(pods)
    )
    ledgers = cluster([Node("gpu-1", ready=True)], (), (), resource_claims=known).ledgers
    return ledgers[node]


def of(ledger, uuid):
    (entry,) = (entry for entry in ledger.devices if entry.device.uuid == uuid)
    return entry


def test_a_resource_claim_holds_its_device_as_a_whole():
    merged = ledger(resource_claim_json("train", result(), pods=users("a")))
    (holding,) = of(merged, A).holdings
    assert (holding.pod, holding.container) == (PODS[0].ref, "main")
    assert (holding.scheme, holding.sources) == (Scheme.DRA, (Source.RESOURCE_CLAIM,))
    assert holding.share.memory_bytes == of(merged, A).held.memory_bytes == 10 * GIB
    assert of(merged, B).held.memory_bytes == 0
    assert merged.conflicts == ()


def test_a_shared_resource_claim_has_its_pods_and_counts_once():
    merged = ledger(resource_claim_json("c", result(consumed="4Gi"), pods=users("a", "b")))
    entry = of(merged, A)
    assert [holding.pod.name for holding in entry.holdings] == ["a", "b"]
    assert (entry.held.memory_bytes, entry.held.slots) == (4 * GIB, 1)


def test_resource_claims_that_consume_more_than_the_device_are_a_conflict():
    merged = ledger(
        resource_claim_json("c", result(consumed="6Gi"), pods=users("a")),
        resource_claim_json("d", result(consumed="5Gi"), pods=users("b")),
    )
    (conflict,) = merged.conflicts
    assert (conflict.kind, conflict.device) == (ConflictKind.OVERCOMMITTED, A)


def test_admin_access_holds_nothing():
    merged = ledger(resource_claim_json("c", result(adminAccess=True), pods=users("a")))
    assert not list(merged.holdings)


def test_a_device_without_a_uuid_or_of_an_incomplete_pool_is_a_holder_all_the_same():
    resource_claim = resource_claim_json(
        "c", result(), result("x", driver="x.example"), pods=users("a")
    )
    for slices in ((), (resource_slice(published("gpu-0", A), of=2),)):
        (holding,) = ledger(resource_claim, slices=slices).unplaced
        assert holding.slots == 2
        assert {part.resource_claim_device.name for part in holding.resource_claim_shares} == {
            "gpu.nvidia.com/gpu-1/gpu-0",
            "x.example/gpu-1/x",
        }
    merged = ledger(resource_claim)
    assert of(merged, A).holdings


def test_a_pod_that_is_gone_holds_nothing_and_is_a_conflict():
    merged = ledger(resource_claim_json("c", result(), pods=users("gone")))
    assert not list(merged.holdings)
    (conflict,) = merged.conflicts
    assert (conflict.kind, conflict.pod.name) == (ConflictKind.HELD_BY_NOBODY_ALIVE, "gone")


def test_a_pod_that_has_ended_holds_nothing_and_is_normal():
    ended = pod("a", phase="Succeeded")
    merged = ledger(resource_claim_json("c", result(), pods=users("a")), pods=[ended])
    assert (list(merged.holdings), merged.conflicts) == ([], ())


def test_a_container_is_named_where_there_is_no_other():
    two = pod("a", containers=(Container("main"), Container("side")))
    merged = ledger(resource_claim_json("c", result(), pods=users("a")), pods=[two])
    (holding,) = merged.holdings
    assert holding.container == ""


def test_devices_of_no_single_node_are_where_the_pod_is():
    merged = ledger(
        resource_claim_json("c", result(driver="x.example", pool="p"), pods=users("a"), node=""),
    )
    (holding,) = merged.unplaced
    assert holding.share.device == "x.example/p/gpu-0"


def test_a_node_that_only_resource_claims_name_has_a_ledger():
    resource_claim = resource_claim_json("c", result(), pods=users("z"), node="gpu-9")
    merged = ledger(resource_claim, slices=(), pods=[pod("z", node="gpu-9")], node="gpu-9")
    assert [holding.pod.name for holding in merged.unplaced] == ["z"]
