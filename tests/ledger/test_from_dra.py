"""ResourceClaims in the ledger: who holds which device, and how often it counts."""

import msgspec
from msgspec import structs

from tests.ledger.ledger_values import NODE, A, B, evidence, kinds, pod, where
from vgpu.ledger import ConflictKind, Statement, merge
from vgpu.ledger.from_dra import resource_claim_statements
from vgpu.ledger.node import NodeSamples, node_evidence
from vgpu.ledger.totals import held
from vgpu.model.allocation import Share
from vgpu.model.facts import (
    CdiDevice,
    DriverResourceClaim,
    Gpu,
    GpuSample,
    Grant,
    HeldResourceClaim,
    KubeletSample,
    PreparedResourceClaim,
    ProcessSample,
    ResourceClaimSample,
)
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.resource_claims import AllocatedDevice, ResourceClaim, ResourceClaimDevice
from vgpu.model.units import GIB

UUID = "GPU-cccccccc-0000-0000-0000-000000000000"
POD = PodRef("u1", "ml", "web-0")
OTHER = PodRef("u2", "ml", "web-1")
DEVICE = ResourceClaimDevice("c1", "train", "gpu.nvidia.com", NODE, "gpu-0", requests=("gpu",))
RESOURCE_CLAIM = PreparedResourceClaim("c1", "ml", "train", ("u1",), (DEVICE,))


def use(pod=POD, container="main", resource_claim="train", device="gpu-0"):
    """What pod-resources reports: it knows neither UIDs nor requests."""
    resource_claim_device = ResourceClaimDevice("", resource_claim, "gpu.nvidia.com", NODE, device)
    return HeldResourceClaim(
        pod.namespace, pod.name, container, resource_claim, (resource_claim_device,)
    )


def statements(prepared, held_resource_claims=(), pods=(POD, OTHER)):
    return list(resource_claim_statements(prepared, held_resource_claims, pods))


def places(ledger):
    return [(one.source, one.pod.uid, one.container) for one in ledger]


# ---------------------------------------------------------------- statements


def test_the_state_alone_names_the_pod():
    (only,) = statements([RESOURCE_CLAIM])
    assert (only.source, only.pod, only.container) == (Source.DRA_STATE, POD, "")
    assert only.resource_claim_devices == (DEVICE,)
    assert only.scheme is Scheme.DRA


def test_pod_resources_names_the_containers_and_gets_uids_from_the_state():
    read = statements([RESOURCE_CLAIM], [use(), use(container="side")])
    assert places(read) == [
        (Source.DRA_STATE, "u1", "main"),
        (Source.DRA_STATE, "u1", "side"),
        (Source.POD_RESOURCES, "u1", "main"),
        (Source.POD_RESOURCES, "u1", "side"),
    ]
    assert {one.resource_claim_devices for one in read} == {(DEVICE,)}


def test_pod_resources_alone_names_the_pod_only_if_its_name_is_unique():
    assert places(statements([], [use()])) == [(Source.POD_RESOURCES, "u1", "main")]
    twin = PodRef("u9", POD.namespace, POD.name)
    assert statements([], [use()], (POD, twin)) == []
    read = statements(
        [RESOURCE_CLAIM], [use()], (POD, twin)
    )  # the state knows which of the two it is
    assert places(read)[-1] == (Source.POD_RESOURCES, "u1", "main")


# ---------------------------------------------------------------- the ledger


def ledger(
    prepared,
    held_resource_claims=(),
    live=("u1", "u2"),
    pods=(POD, OTHER),
    drivers=(),
    grants=(),
    gpus=(A, B),
    api=None,
    state_known=True,
    missing_cdi=(),
    **read,
):
    kubelet = KubeletSample(
        {pod.uid: pod for pod in pods},
        {},
        grants=tuple(grants),
        driver_resource_claims=tuple(drivers),
        held_resource_claims=tuple(held_resource_claims),
        resource_claims=prepared if prepared is None else tuple(prepared),
        dra_state_known=state_known,
        missing_cdi=frozenset(missing_cdi),
    )
    gpu = GpuSample(
        tuple(
            Gpu(gpu_uuid, index, {}, {("memory_total_bytes",): 10.0 * GIB})
            for index, gpu_uuid in enumerate(gpus)
        )
    )
    process = ProcessSample({}, True, frozenset(live))
    samples = NodeSamples(node=NODE, gpu=gpu, process=process, kubelet=kubelet, resource_claims=api)
    return merge(structs.replace(node_evidence((), samples), **read))


def test_a_holder_is_shown_without_a_uuid_if_no_source_knows_it():
    (holding,) = ledger([RESOURCE_CLAIM], [use()]).holdings
    assert (holding.pod, holding.container, holding.scheme) == (POD, "main", Scheme.DRA)
    assert holding.share == Share("gpu.nvidia.com/node-0/gpu-0")
    assert [part.resource_claim_device for part in holding.resource_claim_shares] == [DEVICE]


def test_a_list_of_pods_that_request_shares_has_no_pods_of_resource_claims():
    merged = ledger([RESOURCE_CLAIM], [use()], pods_complete=True)
    assert [holding.pod for holding in merged.holdings] == [POD]
    assert not merged.conflicts


def test_a_pod_that_is_gone_and_still_in_the_state_is_a_conflict():
    merged = ledger([RESOURCE_CLAIM], live=())
    assert not list(merged.holdings)
    assert kinds(merged) == [ConflictKind.HELD_BY_NOBODY_ALIVE]


def test_a_state_that_could_not_be_read_is_no_evidence():
    found = node_evidence(
        (), NodeSamples(kubelet=KubeletSample({}, {}, grants=(), resource_claims=None))
    )
    assert Source.DRA_STATE in found.incomplete
    assert Source.DRA_STATE not in found.read


def resource_claim_statement(
    uid, device, gib, *, resource_claim="c1", share_id="", container="main", cores=None
):
    """A statement of the state about one device of a ResourceClaim, as with a known size."""
    part = ResourceClaimDevice(
        resource_claim, resource_claim, "gpu.nvidia.com", NODE, "gpu-0", share_id
    )
    return Statement(
        source=Source.DRA_STATE,
        pod=PodRef(uid, "ml", f"pod-{uid}"),
        container=container,
        shares=(Share(device, None if gib is None else gib * GIB, cores),),
        scheme=Scheme.DRA,
        alive=True,
        resource_claim_devices=(part,),
    )


def total(*statements):
    merged = merge(evidence(*statements, pods=(pod("u1"), pod("u2"), pod("u3"))))
    (entry,) = (entry for entry in merged.devices if entry.device.uuid == A)
    return merged, entry.held


def test_a_resource_claim_of_several_pods_counts_once():
    found, held_sum = total(
        resource_claim_statement("u1", A, 6),
        resource_claim_statement("u2", A, 6),
        resource_claim_statement("u2", A, 6, container="side"),
    )
    assert len(list(found.holdings)) == 3
    assert (held_sum.memory_bytes, held_sum.slots) == (6 * GIB, 1)
    assert found.conflicts == ()


def test_two_shares_of_a_device_count_twice_even_of_one_resource_claim():
    first, second = (
        resource_claim_statement("u1", A, 4, share_id="s1"),
        resource_claim_statement("u1", A, 5, share_id="s2"),
    )
    both = msgspec.structs.replace(
        first,
        shares=first.shares + second.shares,
        resource_claim_devices=first.resource_claim_devices + second.resource_claim_devices,
    )
    _, held_sum = total(both)
    assert (held_sum.memory_bytes, held_sum.slots) == (9 * GIB, 2)


def test_different_resource_claims_of_more_than_the_device_are_a_conflict():
    found, held_sum = total(
        resource_claim_statement("u1", A, 6),
        resource_claim_statement("u2", A, 6, resource_claim="c2"),
    )
    assert held_sum.memory_bytes == 12 * GIB
    assert kinds(found) == [ConflictKind.OVERCOMMITTED]


def test_a_share_of_another_scheme_beside_it_counts_in_full():
    plain = msgspec.structs.replace(
        resource_claim_statement("u3", A, 2),
        source=Source.CHECKPOINT,
        scheme=Scheme.VOLCANO,
        resource_claim_devices=(),
    )
    _, held_sum = total(
        resource_claim_statement("u1", A, 3), resource_claim_statement("u2", A, 3), plain
    )
    assert held_sum.memory_bytes == 5 * GIB


def test_the_sum_does_not_depend_on_the_order():
    found, _ = total(
        resource_claim_statement("u1", A, 6),
        resource_claim_statement("u2", A, 6),
        resource_claim_statement("u1", B, 1, resource_claim="c2"),
    )
    (entry,) = (entry for entry in found.devices if entry.device.uuid == A)
    assert held(entry.holdings) == held(tuple(reversed(entry.holdings)))
    assert where(found)["u1", "main"] == [A, B]


# ---------------------------------------------------------------- UUIDs and sizes


WHOLE = AllocatedDevice("gpu", "gpu.nvidia.com", NODE, "gpu-0", cores_milli=1000)


def driver(*results, uid="c1", name="train", uuids=None):
    """What NVIDIA's driver has prepared."""
    resource_claim = ResourceClaim(uid, "ml", name, results or (WHOLE,))
    return DriverResourceClaim(
        resource_claim, "gpu.nvidia.com", {"gpu-0": A} if uuids is None else uuids
    )


def of_device(ledger, device=A):
    (entry,) = (entry for entry in ledger.devices if entry.device.uuid == device)
    return entry


def test_a_device_without_a_share_id_is_held_as_a_whole():
    entry = of_device(ledger([RESOURCE_CLAIM], [use()], drivers=[driver()]))
    (holding,) = entry.holdings
    assert (holding.pod, holding.container) == (POD, "main")
    assert holding.share == Share(A, 10 * GIB, 1000)
    assert entry.held.memory_bytes == 10 * GIB


def test_two_shares_of_a_device_are_distinguished_by_their_requests():
    """Kubernetes 1.34 has no share ID in the kubelet's state."""
    first, second = (
        AllocatedDevice(request, "gpu.nvidia.com", NODE, "gpu-0", share_id, gib * GIB)
        for request, share_id, gib in (("a", "s1", 2), ("b/small", "s2", 3))
    )
    devices = tuple(msgspec.structs.replace(DEVICE, requests=(name,)) for name in "ab")
    resource_claim = msgspec.structs.replace(RESOURCE_CLAIM, devices=devices)
    entry = of_device(ledger([resource_claim], drivers=[driver(first, second)]))
    (holding,) = entry.holdings
    assert [
        (part.resource_claim_device.share_id, part.memory_bytes)
        for part in holding.resource_claim_shares
    ] == [
        ("s1", 2 * GIB),
        ("s2", 3 * GIB),
    ]
    assert (entry.held.memory_bytes, entry.held.slots) == (5 * GIB, 2)


def test_a_resource_claim_of_two_pods_has_two_holders_and_one_size():
    share = AllocatedDevice("gpu", "gpu.nvidia.com", NODE, "gpu-0", "s1", 4 * GIB)
    resource_claim = msgspec.structs.replace(RESOURCE_CLAIM, pod_uids=("u1", "u2"))
    merged = ledger([resource_claim], [use(), use(OTHER)], drivers=[driver(share)])
    entry = of_device(merged)
    assert [holding.pod for holding in entry.holdings] == [POD, OTHER]
    assert (entry.held.memory_bytes, entry.held.slots) == (4 * GIB, 1)
    assert merged.conflicts == ()


def test_admin_access_holds_nothing():
    observed = msgspec.structs.replace(WHOLE, admin=True)
    merged = ledger([RESOURCE_CLAIM], [use()], drivers=[driver(observed)])
    assert not list(merged.holdings)
    assert merged.conflicts == ()


SECOND = ResourceClaimDevice("c2", "more", "gpu.nvidia.com", NODE, "gpu-1", requests=("gpu",))
MORE = PreparedResourceClaim("c2", "ml", "more", ("u1",), (SECOND,))


def test_a_container_may_have_two_resource_claims_on_two_gpus():
    other = msgspec.structs.replace(WHOLE, device="gpu-1")
    drivers = [driver(), driver(other, uid="c2", name="more", uuids={"gpu-1": B})]
    uses = [use(), use(resource_claim="more", device="gpu-1")]
    merged = ledger([RESOURCE_CLAIM, MORE], uses, drivers=drivers)
    assert where(merged) == {("u1", "main"): [A, B]}
    assert merged.conflicts == ()
    assert [of_device(merged, uuid).held.memory_bytes for uuid in (A, B)] == [10 * GIB] * 2


def test_two_resource_claims_of_a_container_on_one_gpu_add_up():
    shares = [
        AllocatedDevice("gpu", "gpu.nvidia.com", NODE, "gpu-0", share_id, gib * GIB)
        for share_id, gib in (("s1", 2), ("s2", 3))
    ]
    more = msgspec.structs.replace(MORE, devices=(msgspec.structs.replace(SECOND, device="gpu-0"),))
    drivers = [driver(shares[0]), driver(shares[1], uid="c2", name="more")]
    merged = ledger([RESOURCE_CLAIM, more], [use(), use(resource_claim="more")], drivers=drivers)
    assert merged.conflicts == ()
    entry = of_device(merged)
    assert (entry.held.memory_bytes, entry.held.slots) == (5 * GIB, 2)


# ---------------------------------------------------------------- the API server


def at_api_server(*results, uuids=None, **fields):
    resource_claim = ResourceClaim("c1", "ml", "train", results)
    published = {("gpu.nvidia.com", NODE, "gpu-0"): A} if uuids is None else uuids
    return ResourceClaimSample((resource_claim,), uuids=published, **fields)


def test_sizes_and_uuids_of_any_driver_are_those_of_the_api_server():
    share = AllocatedDevice("gpu", "gpu.nvidia.com", NODE, "gpu-0", "s1", 4 * GIB)
    for prepared in ([RESOURCE_CLAIM], []):  # with and without the kubelet's state
        entry = of_device(ledger(prepared, [use()], api=at_api_server(share)))
        (holding,) = entry.holdings
        assert holding.resource_claim_shares[0].resource_claim_device.share_id == "s1"
        assert entry.held.memory_bytes == 4 * GIB


def test_admin_access_is_known_from_the_api_server():
    observed = msgspec.structs.replace(WHOLE, admin=True)
    assert not list(ledger([RESOURCE_CLAIM], [use()], api=at_api_server(observed)).holdings)


# ---------------------------------------------------------------- conflicts


def test_a_driver_without_the_kubelets_state_leaves_nothing():
    merged = ledger([], [use()], drivers=[driver()], state_known=False)
    assert merged.conflicts == ()
    assert [holding.share.device for holding in merged.holdings] == [A]


def test_a_leftover_of_a_deleted_resource_claim_is_described_as_such():
    api = ResourceClaimSample(gone=frozenset({"c1"}))
    (conflict,) = ledger([], drivers=[driver()], api=api).conflicts
    where = "ResourceClaim ml/train of gpu.nvidia.com"
    assert conflict.detail == f"{where}, which does not exist, gpu-0"


def test_what_does_not_exist_is_left_whatever_the_kubelet_has():
    api = ResourceClaimSample(gone=frozenset({"c1"}))
    for fields in ({"state_known": False}, {}):  # without its state, and with the ResourceClaim
        merged = ledger(
            [RESOURCE_CLAIM] if not fields else [], drivers=[driver()], api=api, **fields
        )
        assert kinds(merged) == [ConflictKind.RESOURCE_CLAIM_LEFT]
    assert (
        ledger([], drivers=[driver()], api=ResourceClaimSample(), state_known=False).conflicts == ()
    )


def test_a_resource_claim_that_only_the_driver_has_is_a_conflict():
    merged = ledger(
        [RESOURCE_CLAIM], drivers=[driver(), driver(uid="old", name="old", uuids={"gpu-1": B})]
    )
    (conflict,) = merged.conflicts
    assert (conflict.kind, conflict.device) == (ConflictKind.RESOURCE_CLAIM_LEFT, B)
    assert conflict.detail == "ResourceClaim ml/old of gpu.nvidia.com, gpu-1"


def test_a_state_that_could_not_be_read_leaves_no_resource_claim():
    assert ledger(None, drivers=[driver()]).conflicts == ()


SPEC = "k8s.gpu.nvidia.com/claim=c1-gpu-0"
CDI = (CdiDevice("gpu.nvidia.com", NODE, "gpu-0", SPEC),)


def test_a_prepared_resource_claim_without_its_cdi_spec_is_a_conflict():
    resource_claim = msgspec.structs.replace(RESOURCE_CLAIM, cdi=CDI)
    merged = ledger([resource_claim], [use()], drivers=[driver()], missing_cdi={SPEC})
    (conflict,) = merged.conflicts
    assert (conflict.kind, conflict.device) == (ConflictKind.CDI_SPEC_MISSING, A)
    where = "ResourceClaim ml/train of gpu.nvidia.com, gpu-0"
    assert conflict.detail == f"{where}: no CDI spec has {SPEC}"
    assert len(list(merged.holdings)) == 1  # it still holds its device
    other = ledger([resource_claim], [use()], missing_cdi={"k8s.gpu.nvidia.com/claim=c2-gpu-0"})
    assert other.conflicts == ()


def test_without_the_kubelets_state_pod_resources_names_what_is_missing():
    both = [msgspec.structs.replace(use(container=name), cdi=CDI) for name in ("main", "side")]
    api = at_api_server(WHOLE)
    for fields, device in (({"api": api}, A), ({}, f"gpu.nvidia.com/{NODE}/gpu-0")):
        merged = ledger([], both, state_known=False, missing_cdi={SPEC}, **fields)
        (conflict,) = merged.conflicts
        assert (conflict.kind, conflict.device) == (ConflictKind.CDI_SPEC_MISSING, device)
    with_state = ledger([RESOURCE_CLAIM], both, missing_cdi={SPEC})
    assert with_state.conflicts == ()  # the state has another CDI device


def test_a_gpu_of_a_resource_claim_and_of_a_device_plugin_is_a_conflict():
    plain = Grant(OTHER.uid, "main", "nvidia.com/gpu", (UUID,), {"NVIDIA_VISIBLE_DEVICES": UUID})
    merged = ledger(
        [RESOURCE_CLAIM], drivers=[driver(uuids={"gpu-0": UUID})], grants=[plain], gpus=(UUID,)
    )
    (conflict,) = (one for one in merged.conflicts if one.kind is ConflictKind.DOUBLE_BOOKED)
    assert conflict.device == UUID
    assert "dra, nvidia" in conflict.detail
    alone = ledger([RESOURCE_CLAIM], drivers=[driver(uuids={"gpu-0": UUID})], gpus=(UUID,))
    assert alone.conflicts == ()
