"""ResourceClaims in the ledger: who holds which device, and how often it counts."""

import msgspec

from tests.ledger.ledger_values import GPUS, NODE, A, B, evidence, kinds, pod, where
from vgpu.facts import (
    Gpu,
    GpuSample,
    HeldResourceClaim,
    KubeletSample,
    PreparedResourceClaim,
    ProcessSample,
)
from vgpu.ledger import ConflictKind, Statement, merge
from vgpu.ledger.from_dra import resource_claim_statements
from vgpu.ledger.node import NodeSamples, node_evidence
from vgpu.ledger.totals import held
from vgpu.model import ClaimedDevice, PodRef, Scheme, Share, Source
from vgpu.units import GIB

POD = PodRef("u1", "ml", "web-0")
OTHER = PodRef("u2", "ml", "web-1")
DEVICE = ClaimedDevice("c1", "train", "gpu.nvidia.com", NODE, "gpu-0", requests=("gpu",))
CLAIM = PreparedResourceClaim("c1", "ml", "train", ("u1",), (DEVICE,))


def use(pod=POD, container="main", claim="train", device="gpu-0"):
    """What pod-resources reports: it knows neither UIDs nor requests."""
    claimed = ClaimedDevice("", claim, "gpu.nvidia.com", NODE, device)
    return HeldResourceClaim(pod.namespace, pod.name, container, claim, (claimed,))


def statements(prepared, held_claims=(), pods=(POD, OTHER)):
    return list(resource_claim_statements(prepared, held_claims, pods))


def places(found):
    return [(one.source, one.pod.uid, one.container) for one in found]


# ---------------------------------------------------------------- statements


def test_the_state_alone_names_the_pod():
    (only,) = statements([CLAIM])
    assert (only.source, only.pod, only.container) == (Source.DRA_STATE, POD, "")
    assert only.claimed == (DEVICE,)
    assert only.scheme is Scheme.DRA


def test_pod_resources_names_the_containers_and_gets_uids_from_the_state():
    found = statements([CLAIM], [use(), use(container="side")])
    assert places(found) == [
        (Source.DRA_STATE, "u1", "main"),
        (Source.DRA_STATE, "u1", "side"),
        (Source.POD_RESOURCES, "u1", "main"),
        (Source.POD_RESOURCES, "u1", "side"),
    ]
    assert {one.claimed for one in found} == {(DEVICE,)}


def test_pod_resources_alone_names_the_pod_only_if_its_name_is_unique():
    assert places(statements([], [use()])) == [(Source.POD_RESOURCES, "u1", "main")]
    twin = PodRef("u9", POD.namespace, POD.name)
    assert statements([], [use()], (POD, twin)) == []
    found = statements([CLAIM], [use()], (POD, twin))  # the state knows which of the two it is
    assert places(found)[-1] == (Source.POD_RESOURCES, "u1", "main")


# ---------------------------------------------------------------- the ledger


def ledger(prepared, held_claims=(), live=("u1", "u2"), pods=(POD, OTHER)):
    kubelet = KubeletSample(
        {pod.uid: pod for pod in pods},
        {},
        grants=(),
        held_claims=tuple(held_claims),
        resource_claims=prepared if prepared is None else tuple(prepared),
    )
    gpu = GpuSample(
        tuple(
            Gpu(device.uuid, device.index, {}, {("memory_total_bytes",): 10.0 * GIB})
            for device in GPUS
        )
    )
    process = ProcessSample({}, True, frozenset(live))
    samples = NodeSamples(node=NODE, gpu=gpu, process=process, kubelet=kubelet)
    return merge(node_evidence((), samples))


def test_a_holder_is_shown_without_a_uuid_if_no_source_knows_it():
    (holding,) = ledger([CLAIM], [use()]).holdings
    assert (holding.pod, holding.container, holding.scheme) == (POD, "main", Scheme.DRA)
    assert holding.share == Share("gpu.nvidia.com/node-0/gpu-0")
    assert [part.claimed for part in holding.claimed] == [DEVICE]


def test_a_pod_that_is_gone_and_still_in_the_state_is_a_conflict():
    found = ledger([CLAIM], live=())
    assert not list(found.holdings)
    assert kinds(found) == [ConflictKind.HELD_BY_NOBODY_ALIVE]


def test_a_state_that_could_not_be_read_is_no_evidence():
    found = node_evidence(
        (), NodeSamples(kubelet=KubeletSample({}, {}, grants=(), resource_claims=None))
    )
    assert Source.DRA_STATE in found.incomplete
    assert Source.DRA_STATE not in found.read


def claimed(uid, device, gib, *, claim="c1", share_id="", container="main", cores=None):
    """A statement of the state about one device of a ResourceClaim, as with a known size."""
    part = ClaimedDevice(claim, claim, "gpu.nvidia.com", NODE, "gpu-0", share_id)
    return Statement(
        source=Source.DRA_STATE,
        pod=PodRef(uid, "ml", f"pod-{uid}"),
        container=container,
        shares=(Share(device, None if gib is None else gib * GIB, cores),),
        scheme=Scheme.DRA,
        alive=True,
        claimed=(part,),
    )


def total(*given):
    found = merge(evidence(*given, pods=(pod("u1"), pod("u2"), pod("u3"))))
    (entry,) = (entry for entry in found.devices if entry.device.uuid == A)
    return found, entry.held


def test_a_resource_claim_of_several_pods_counts_once():
    found, held_sum = total(
        claimed("u1", A, 6), claimed("u2", A, 6), claimed("u2", A, 6, container="side")
    )
    assert len(list(found.holdings)) == 3
    assert (held_sum.memory_bytes, held_sum.slots) == (6 * GIB, 1)
    assert found.conflicts == ()


def test_two_shares_of_a_device_count_twice_even_of_one_resource_claim():
    first, second = claimed("u1", A, 4, share_id="s1"), claimed("u1", A, 5, share_id="s2")
    both = msgspec.structs.replace(
        first, shares=first.shares + second.shares, claimed=first.claimed + second.claimed
    )
    _, held_sum = total(both)
    assert (held_sum.memory_bytes, held_sum.slots) == (9 * GIB, 2)


def test_different_resource_claims_of_more_than_the_device_are_a_conflict():
    found, held_sum = total(claimed("u1", A, 6), claimed("u2", A, 6, claim="c2"))
    assert held_sum.memory_bytes == 12 * GIB
    assert kinds(found) == [ConflictKind.OVERCOMMITTED]


def test_a_share_of_another_scheme_beside_it_counts_in_full():
    plain = msgspec.structs.replace(
        claimed("u3", A, 2), source=Source.CHECKPOINT, scheme=Scheme.VOLCANO, claimed=()
    )
    _, held_sum = total(claimed("u1", A, 3), claimed("u2", A, 3), plain)
    assert held_sum.memory_bytes == 5 * GIB


def test_the_sum_does_not_depend_on_the_order():
    found, _ = total(claimed("u1", A, 6), claimed("u2", A, 6), claimed("u1", B, 1, claim="c2"))
    (entry,) = (entry for entry in found.devices if entry.device.uuid == A)
    assert held(entry.holdings) == held(tuple(reversed(entry.holdings)))
    assert where(found)["u1", "main"] == [A, B]
