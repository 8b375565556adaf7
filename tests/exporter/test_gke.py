"""The page of a GKE node, by what a real kubelet has beside GKE's own plugin."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.allocations import allocation_totals
from exporter.families import OWN_TABLES
from tests.exporter.test_nvidia_sharing import Page, observation, view_of
from tests.support.gke_plugin import CASES, GPU, TOTAL, recorded
from vgpu.ledger.conflicts import ConflictKind
from vgpu.ledger.limit_verdict import LimitReason
from vgpu.metrics.render import Format, Renderer
from vgpu.model.facts import Gpu, GpuProcess, Grant, LimitSample, MpsClientLimits
from vgpu.model.names import Source
from vgpu.model.units import GIB, MIB
from vgpu.schemes.nvidia.grant import NVIDIA
from vgpu.sources.kubelet_checkpoint import parse_checkpoint, registered_replicas

WAYS = {
    "whole": "exclusive",
    "time-sharing": "time-slicing",
    "mps": "mps",
    "mps-two-sizes": "mps",
    "mig": "mig",
    "mig-time-sharing": "mig-time-slicing",
    "mig-mps": "mps",
    "time-sharing-after-whole": "time-slicing",
}
"""Case -> how its shared devices are shared."""


def device(case, device_id):
    """The UUID of the device that an ID names, by the driver's minors and GPU instances."""
    number, *parts = device_id.removeprefix("nvidia").split("/")
    (gpu,) = [one["uuid"] for one in case.seen["driver"] if one.get("minor") == int(number)]
    instance = next((part.removeprefix("gi") for part in parts if part.startswith("gi")), None)
    if instance is None:
        return gpu
    (uuid,) = [
        one["uuid"]
        for one in case.seen["driver"]
        if one.get("parent") == gpu and one["gi"] == int(instance)
    ]
    return uuid


def held(case):
    """(pod's UID, device) -> number of IDs, as pod-resources lists them."""
    return Counter(
        (case.uids[pod["name"]], device(case, device_id))
        for pod in case.seen["List"]["pod_resources"]
        if pod["name"] in case.uids
        for container in pod["containers"]
        for one in container["devices"]
        for device_id in one["device_ids"]
    )


def page_text(page, *, without=()):
    tables = [table for table in OWN_TABLES if table not in without]
    view = view_of(page.seen, page.usage, allocation_totals(page.ledger))
    return Renderer(tables).render(view).body(Format.TEXT).decode()


def test_each_case_is_named_here_and_each_checkpoint_is_the_kubelets():
    assert {*CASES} == {*WAYS}
    for name in CASES:
        grants, rejections = parse_checkpoint(recorded(name).checkpoint)  # its checksum is right
        assert grants
        assert not rejections


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "pod-resources alone"])
def test_each_pod_holds_the_device_of_its_ids_and_nothing_is_a_conflict(name, checkpoint):
    case = recorded(name)
    page = Page(case.observation(checkpoint=checkpoint))
    slots = {(h.pod.uid, h.share.device): h.slots for h in page.ledger.holdings}
    assert slots == dict(held(case))
    assert {holding.scheme for holding in page.ledger.holdings} == {NVIDIA}
    assert page.ledger.unplaced == ()
    # The plugin counts with the memory of the first GPU for all GPUs of a node.
    overcommitted = checkpoint and name == "mps-two-sizes"
    assert page.kinds() == [ConflictKind.OVERCOMMITTED] * overcommitted
    if checkpoint:
        for row in page.usage.shares:
            assert row.sharing == ("exclusive" if _is_older(case, row) else WAYS[name])
            assert (row.limit_bytes is None) is (row.sharing != "mig")
            assert row.unlimited is (row.sharing in {"time-slicing", "mig-time-slicing"})


def _is_older(case, row):
    """Whether the pod was there before the GPUs were shared."""
    return case.uids.get("pod-0-0") == row.pod.uid and len(case.seen["gpu_config.json"]) > 1


@pytest.mark.parametrize("name", CASES)
def test_without_the_driver_the_holders_are_known_and_their_gpus_are_not(name):
    page = Page(recorded(name).observation(driver=False))
    assert {holding.pod.uid for holding in page.ledger.unplaced} == {*recorded(name).uids.values()}
    assert page.kinds() == []


@pytest.mark.parametrize(
    ("name", "each"),
    [("time-sharing", 3), ("mps", 4), ("mig-time-sharing", 2), ("whole", None), ("mig", None)],
)
def test_the_registered_replicas_are_counted_by_device(name, each):
    case = recorded(name)
    counts = registered_replicas(case.checkpoint)
    assert {*counts.values()} == ({each} if each else set())
    page = Page(case.observation())
    instances = any("parent" in one for one in case.seen["driver"])
    devices = {one["uuid"] for one in case.seen["driver"] if ("parent" in one) is instances}
    assert page.usage.replicas == (dict.fromkeys(devices, each) if each else {})


def test_an_mps_share_has_its_part_of_the_gpu_and_limits_each_process():
    case = recorded("mps")
    page = Page(case.observation())
    (gpu,) = case.seen["driver"]
    requests = {pod["uid"]: pod["requests"] for pod in case.seen["pods"]}
    assert sorted(requests.values()) == [1, 2]
    for holding in page.ledger.holdings:
        units = requests[holding.pod.uid]
        assert holding.share.memory_bytes == gpu["total"] // 4 * units
        assert holding.share.cores_milli == 250 * units
        row = page.share(holding.pod.uid, gpu["uuid"])
        assert row.process_limit_bytes == row.fair_share_bytes == 20 * GIB * units
        assert row.process_core_limit_percent == 25 * units
        assert (row.limit_bytes, row.unlimited) == (None, False)
    (entry,) = page.ledger.devices
    assert (entry.held.memory_bytes, entry.held.cores_milli) == (60 * GIB, 750)


def test_a_client_of_mps_is_not_limited_by_the_daemon():
    """The answer's limit is the environment of the container, which its processes can change."""
    case = recorded("mps")
    (gpu,) = case.seen["driver"]
    seen = case.observation(processes=[(7, "pod-0-0", gpu["uuid"], GIB)])
    clients = tuple(msgspec.structs.replace(each, mps=True) for each in seen.gpu.processes)
    sample = msgspec.structs.replace(seen.gpu, processes=clients)
    page = Page(msgspec.structs.replace(seen, gpu=sample))
    reasons = {row.pod.uid: row.limit_reason for row in page.usage.containers}
    assert reasons[case.uids["pod-0-0"]] is LimitReason.LIMIT_IN_ENVIRONMENT


@pytest.mark.parametrize("name", ["time-sharing", "mig-time-sharing", "mig-mps"])
def test_other_shares_have_no_amount(name):
    page = Page(recorded(name).observation())
    for holding in page.ledger.holdings:
        assert (holding.share.memory_bytes, holding.share.cores_milli) == (None, None)
    assert {entry.held.memory_bytes for entry in page.ledger.devices} == {0}
    assert {row.process_limit_bytes for row in page.usage.shares} == {None}


@pytest.mark.parametrize(
    ("set_for_itself", "limits"),
    [
        (MpsClientLimits({0: 5 * GIB}, 10), (5 * GIB, 10)),
        (MpsClientLimits({0: 30 * GIB}, 80), (30 * GIB, 80)),  # no daemon would refuse it
        (MpsClientLimits(), (None, None)),
    ],
)
def test_a_limit_of_the_answer_is_what_the_process_has_made_of_it(set_for_itself, limits):
    """GKE's daemon has no limit of its own: the variables of the process are all there is."""
    case = recorded("mps")
    (gpu,) = case.seen["driver"]
    seen = case.observation(processes=[(7, "pod-0-0", gpu["uuid"], GIB)])
    process = msgspec.structs.replace(seen.process, mps_clients={7: set_for_itself})
    row = Page(msgspec.structs.replace(seen, process=process, limits=LimitSample(()))).share(
        case.uids["pod-0-0"], gpu["uuid"]
    )
    assert (row.process_limit_bytes, row.process_core_limit_percent) == limits
    assert row.used_bytes == GIB


def test_an_instance_or_gpu_that_is_gone_is_missing_and_never_another():
    case = recorded("mig")
    for device_id, gone in (("nvidia2/gi9", "/dev/nvidia2/gi9"), ("nvidia9", "/dev/nvidia9")):
        seen = case.observation()
        grants = (Grant(case.uids["pod-0-0"], "main", GPU, (device_id,), {}),)
        kubelet = msgspec.structs.replace(seen.kubelet, grants=grants, held=None)
        page = Page(msgspec.structs.replace(seen, kubelet=kubelet))
        assert page.slots() == [(case.uids["pod-0-0"], gone, 1)]
        assert page.kinds() == [ConflictKind.DEVICE_MISSING]


def test_a_hostile_id_costs_its_own_container_alone():
    case = recorded("time-sharing")
    seen = case.observation()
    first, *others = seen.kubelet.grants
    hostile = msgspec.structs.replace(first, device_ids=("nvidia999999/vgpu-1", "nvidia0/gi0/gi0"))
    kubelet = msgspec.structs.replace(seen.kubelet, grants=(hostile, *others), held=None)
    page = Page(msgspec.structs.replace(seen, kubelet=kubelet))
    (conflict,) = page.ledger.conflicts
    assert (conflict.kind, conflict.pod.uid) == (ConflictKind.MALFORMED, first.pod_uid)
    assert {holding.pod.uid for holding in page.ledger.unplaced} == {first.pod_uid}
    expected = {place: n for place, n in held(case).items() if place[0] != first.pod_uid}
    placed = {(h.pod.uid, h.share.device): h.slots for h in page.ledger.holdings if h.share.device}
    assert placed == expected


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "/gi1", "/gi2"])), max_size=4),
    st.booleans(),
)
def test_a_container_is_on_the_device_of_its_number_or_on_none(minors, wanted, known):
    """With any minors; where the driver does not report them, an index is never taken for one."""
    gpus = []
    devices = {}
    for index, minor in enumerate(minors):
        gpu = f"GPU-{index}"
        gpus.append(Gpu(gpu, index, {"minor": str(minor)} if known else {}, {TOTAL: GIB}))
        devices[f"nvidia{minor}"] = gpu
        instance = f"MIG-{index}"
        info = {"gpu_instance_id": "1", "compute_instance_id": "0"}
        gpus.append(Gpu(instance, index, info, {TOTAL: GIB}, gpu))
        devices[f"nvidia{minor}/gi1"] = instance
    ids = {f"p{number}": f"nvidia{minor}{part}" for number, (minor, part) in enumerate(wanted)}
    grants = [Grant(uid, "main", GPU, (device_id,), {}) for uid, device_id in ids.items()]
    page = Page(observation(*grants, gpus=gpus))
    named = devices if known else {}
    on = {h.pod.uid: h.share.device for h in page.ledger.holdings}
    assert on == {uid: named.get(text, f"/dev/{text}") for uid, text in ids.items()}
    gone = [uid for uid, text in ids.items() if known and text not in devices]
    missing = [c for c in page.ledger.conflicts if c.kind is ConflictKind.DEVICE_MISSING]
    assert sorted(conflict.pod.uid for conflict in missing) == sorted(gone)


def test_the_mps_server_of_the_node_is_no_process_without_an_allocation():
    case = recorded("mps")
    (gpu,) = case.seen["driver"]
    seen = case.observation()
    driver = msgspec.structs.replace(seen.gpu, processes=(GpuProcess(9, gpu["uuid"], 30 * MIB),))
    for servers, kinds in (
        (frozenset({9}), []),
        (frozenset(), [ConflictKind.PROCESS_WITHOUT_ALLOCATION]),
    ):
        process = msgspec.structs.replace(seen.process, owners={9: None}, mps_servers=servers)
        page = Page(msgspec.structs.replace(seen, gpu=driver, process=process))
        assert page.kinds() == kinds


def test_both_sources_of_the_kubelet_agree():
    page = Page(recorded("time-sharing").observation())
    for holding in page.ledger.holdings:
        assert holding.sources == (Source.POD_RESOURCES, Source.CHECKPOINT)


def test_the_page_names_the_way_and_the_limits_and_no_unknown_scheme():
    text = page_text(Page(recorded("mps").observation()))
    assert 'sharing="mps"' in text
    assert f"}} {20 * GIB}\n" in text
    assert 'scheme="unknown"' not in text
    assert f'vgpu_gpu_replicas{{uuid="{recorded("mps").seen["driver"][0]["uuid"]}"}} 4' in text
