"""The page of a node whose GPUs NVIDIA's own device plugin shares."""

import json

import msgspec
import pytest

from exporter.allocations import allocation_totals
from exporter.families import OWN_TABLES
from exporter.families.allocations import RESOURCE_CLAIMS
from exporter.families.containers import SHARING
from exporter.families.devices import REPLICAS
from exporter.sampler import codecs
from exporter.view import ExporterView, gpu_rows
from tests.support import sample_cluster as sample
from tests.support.waiting import WAIT_SECONDS
from vgpu.kube.kinds import PODS
from vgpu.ledger.conflicts import ConflictKind
from vgpu.ledger.usage import MEMORY_USED
from vgpu.metrics.render import Format, Renderer
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    Grant,
    KubeletSample,
    LimitSample,
    MpsClientLimits,
    MpsLimits,
    ProcessOwner,
    ProcessSample,
)
from vgpu.model.names import PodRef, Source
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import GIB
from vgpu.schemes.dra.row import DRA_ROW
from vgpu.schemes.nvidia.resources import other_names
from vgpu.schemes.nvidia.row import NVIDIA_ROW
from vgpu.schemes.registry import registered
from vgpu.schemes.volcano.key_set import HAMI as HAMI_KEYS
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.observation import observe
from vgpu.sources.samples import Observation, pod_sample, with_node

G0 = "GPU-11111111-2222-3333-4444-555555555555"
G1 = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
M0 = "MIG-0a1b2c3d-1111-5222-8333-444455556666"
M1 = "MIG-0a1b2c3d-1111-5222-8333-444455557777"
ENV = "NVIDIA_VISIBLE_DEVICES"
TOTAL = ("memory_total_bytes",)


def gpu(uuid, index, total, parent="", **info):
    return Gpu(uuid, index, info, {TOTAL: total, MEMORY_USED: 0}, parent)


WHOLE_GPUS = (gpu(G0, 0, 80 * GIB), gpu(G1, 1, 80 * GIB))


def observation(
    *grants,
    gpus=WHOLE_GPUS,
    processes=(),
    replicas=None,
    held=None,
    utilization=None,
    limits=None,
    clients=None,
):
    """``processes`` are (pid, pod UID, container, device, bytes)."""
    uids = {grant.pod_uid for grant in grants} | {uid for _, uid, *_ in processes}
    pods = {uid: PodRef(uid, "ml", uid) for uid in uids}
    owners = {
        pid: ProcessOwner(f"{uid}-{name}", uid, "containerd") for pid, uid, name, *_ in processes
    }
    names = {f"{uid}-{name}": ContainerName("ml", uid, name, uid) for _, uid, name, *_ in processes}
    uuids = frozenset(one.uuid for one in gpus)
    return Observation(
        gpu=GpuSample(
            tuple(gpus),
            processes=tuple(GpuProcess(pid, at, used) for pid, _, _, at, used in processes),
            processes_known=uuids,
            utilization=utilization or {},
            utilization_known=frozenset(one.uuid for one in gpus if not one.parent),
        ),
        process=ProcessSample(owners, True, frozenset(uids), mps_clients=clients or {}),
        kubelet=KubeletSample(pods, names, tuple(grants), held=held, replicas=replicas or {}),
        limits=limits,
    )


def replica(uid, *ids, env=None, resource="nvidia.com/gpu"):
    return Grant(uid, "main", resource, ids, {ENV: G0} if env is None else env)


class Page:
    """The rows and the ledger of one observation."""

    def __init__(self, seen):
        builder = LedgerBuilder(codecs(None, None), "n")
        self.ledger = builder.ledger(seen)
        self.seen, self.usage = seen, builder.usage(seen)

    def share(self, uid, device=G0):
        (row,) = [row for row in self.usage.shares if (row.pod.uid, row.device) == (uid, device)]
        return row

    def slots(self):
        return [(h.pod.uid, h.share.device, h.slots) for h in self.ledger.holdings]

    def kinds(self):
        return [conflict.kind for conflict in self.ledger.conflicts]


def view_of(seen, usage, totals=None):
    return ExporterView(
        timestamp=seen.at,
        node="n",
        interval=15.0,
        usage=usage,
        collectors=(),
        calls={},
        xids=(),
        build={},
        own={},
        gpus=tuple(gpu_rows(seen.gpu, usage)) if seen.gpu else (),
        allocations=totals,
    )


def text(page):
    rendered = Renderer((REPLICAS, SHARING)).render(view_of(page.seen, page.usage))
    return rendered.body(Format.TEXT).decode()


def test_each_holder_of_a_time_sliced_gpu_has_its_own_use_and_no_limit():
    page = Page(
        observation(
            replica("a", f"{G0}::0"),
            replica("b", f"{G0}::1", f"{G0}::3"),
            processes=((1, "a", "main", G0, 30 * GIB), (2, "b", "main", G0, 5 * GIB)),
            utilization={(1, G0): 0.7},
            replicas={G0: 4, G1: 4},
        )
    )
    a, b = page.share("a"), page.share("b")
    assert (a.used_bytes, a.sm_utilization, b.used_bytes, b.sm_utilization) == (
        30 * GIB, 0.7, 5 * GIB, 0.0,
    )  # fmt: skip
    assert [(row.limit_bytes, row.unlimited) for row in (a, b)] == [(None, True)] * 2
    assert (a.fair_share_bytes, b.fair_share_bytes) == (20 * GIB, 40 * GIB)
    assert page.slots() == [("a", G0, 1), ("b", G0, 2)]
    assert page.kinds() == []
    assert page.ledger.devices[0].held.memory_bytes == 0
    lines = text(page).splitlines()
    labels = f'namespace="ml",pod="a",container="main",pod_uid="a",uuid="{G0}"'
    assert f'vgpu_container_sharing_info{{{labels},sharing="time-slicing"}} 1' in lines
    assert f"vgpu_container_memory_fair_share_bytes{{{labels}}} {20 * GIB}" in lines
    assert f'vgpu_gpu_replicas{{uuid="{G1}"}} 4' in lines


def test_a_replica_beyond_todays_number_is_a_true_holder():
    """After a change of the plugin's configuration running pods keep their IDs."""
    page = Page(observation(replica("a", f"{G0}::7"), replica("b", G0), replicas={G0: 2}))
    assert page.slots() == [("a", G0, 1), ("b", G0, 1)]
    assert page.share("a").fair_share_bytes == 40 * GIB


def test_without_registered_replicas_there_is_no_fair_share():
    row = Page(observation(replica("a", f"{G0}::0"))).share("a")
    assert (row.sharing, row.fair_share_bytes) == ("time-slicing", None)


def test_an_mps_replica_has_no_limit_that_was_not_read():
    row = Page(observation(replica("a", f"{G0}::0", env=MPS_ENV), replicas={G0: 4})).share("a")
    assert (row.sharing, row.limit_bytes, row.unlimited) == ("mps", None, False)


MPS_ENV = {"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}


def test_mps_limits_each_process_as_the_daemon_of_its_resource_has_it():
    """The limit is no limit of the container: it may have several processes."""
    daemons = (
        MpsLimits("nvidia.com/gpu", {0: 20 * GIB, 1: 10 * GIB}, 25),
        MpsLimits("nvidia.com/gpu.shared", {0: GIB}, 10),
    )
    page = Page(
        observation(
            replica("a", f"{G0}::0", env=MPS_ENV),
            replica("b", f"{G1}::1", env=MPS_ENV),
            replica("c", f"{G0}::2"),
            replicas={G0: 4, G1: 4},
            limits=LimitSample((), mps=daemons),
        )
    )
    rows = [page.share("a"), page.share("b", G1), page.share("c")]
    assert [(row.process_limit_bytes, row.process_core_limit_percent) for row in rows] == [
        (20 * GIB, 25),
        (10 * GIB, 25),
        (None, None),
    ]
    assert {row.limit_bytes for row in rows} == {None}
    labels = f'namespace="ml",pod="b",container="main",pod_uid="b",uuid="{G1}"'
    lines = text(page).splitlines()
    assert f"vgpu_container_process_memory_limit_bytes{{{labels}}} {10 * GIB}" in lines
    assert f"vgpu_container_process_core_limit_ratio{{{labels}}} 0.25" in lines


A, B = (1, "a", "main", G0, GIB), (2, "a", "main", G0, GIB)
LOWER = MpsClientLimits({0: 5 * GIB}, 10)
HIGHER = MpsClientLimits({0: 30 * GIB}, 80)
DAEMON = MpsLimits("nvidia.com/gpu", {0: 20 * GIB}, 25)


@pytest.mark.parametrize(
    ("processes", "clients", "daemons", "limits"),
    [
        ([A], {}, [DAEMON], (20 * GIB, 25)),
        ([A], {1: LOWER}, [DAEMON], (5 * GIB, 10)),
        ([A], {1: HIGHER}, [DAEMON], (20 * GIB, 25)),  # a client raises no limit
        ([A], {1: LOWER}, [], (5 * GIB, 10)),
        ([A, B], {1: LOWER, 2: MpsClientLimits()}, [DAEMON], (20 * GIB, 25)),
        ([A, B], {1: LOWER, 2: MpsClientLimits({0: GIB}, 5)}, [DAEMON], (5 * GIB, 10)),
        ([A, B], {1: LOWER}, [DAEMON], (20 * GIB, 25)),  # of one it was not read
        ([A, B], {1: LOWER, 2: MpsClientLimits()}, [], (None, None)),
    ],
)
def test_a_client_may_have_lowered_its_limit_in_its_environment(
    processes, clients, daemons, limits
):
    seen = observation(
        replica("a", f"{G0}::0", env=MPS_ENV),
        processes=processes,
        clients=clients,
        limits=LimitSample((), mps=tuple(daemons)),
    )
    row = Page(seen).share("a")
    assert (row.process_limit_bytes, row.process_core_limit_percent) == limits


def test_the_environment_of_a_container_with_two_gpus_names_none_of_them():
    """Its numbers are CUDA's, and their order is not known here."""
    seen = observation(
        replica("a", f"{G0}::0", f"{G1}::0", env=MPS_ENV), processes=[A], clients={1: LOWER}
    )
    assert Page(seen).share("a").process_limit_bytes is None
    sliced = observation(replica("a", f"{G0}::0"), processes=[A], clients={1: LOWER})
    assert Page(sliced).share("a").process_limit_bytes is None


def test_an_mps_server_is_no_process_without_an_allocation():
    """It is on each GPU of its resource, in the daemon's pod, which requests none."""
    server = (9, "daemon", "mps", G0, 30)
    grant, with_server = replica("a", f"{G0}::0", env=MPS_ENV), MpsLimits("r/x", {}, None, {9})
    known = observation(grant, processes=[server], limits=LimitSample((), mps=(with_server,)))
    assert Page(known).kinds() == []
    unknown = observation(grant, processes=[server])
    assert Page(unknown).kinds() == [ConflictKind.PROCESS_WITHOUT_ALLOCATION]


def test_a_whole_gpu_is_held_by_one_container():
    page = Page(observation(replica("a", G0)))
    assert page.share("a").sharing == "exclusive"
    assert page.ledger.devices[0].held.memory_bytes == 80 * GIB
    assert text(page).count("sharing_info") == 3  # HELP, TYPE, one series


def test_two_ids_of_one_gpu_are_both_counted_whichever_the_answer_repeats():
    for answer in (G0, f"{G0},{G0}"):  # up to 0.17 twice, since 0.18 once
        seen = observation(replica("a", f"{G0}::0", f"{G0}::3", env={ENV: answer}))
        assert Page(seen).slots() == [("a", G0, 2)]


MIG_GPUS = (
    gpu(G0, 0, 80 * GIB),
    gpu(M0, 0, 10 * GIB, G0, gpu_instance_id="7", compute_instance_id="0", mig_profile="1g.10gb"),
    gpu(M1, 1, 20 * GIB, G0, gpu_instance_id="5", compute_instance_id="0", mig_profile="2g.20gb"),
)


@pytest.mark.parametrize("device_id", [M0, f"MIG-{G0}/7/0"], ids=["uuid", "before R470"])
def test_a_mig_instance_is_a_device_with_its_own_memory_and_processes(device_id):
    page = Page(
        observation(
            Grant("a", "main", "nvidia.com/mig-1g.10gb", (device_id,), {ENV: device_id}),
            Grant("b", "main", "nvidia.com/mig-2g.20gb", (M1,), {ENV: M1}),
            gpus=MIG_GPUS,
            processes=((1, "a", "main", M0, 6 * GIB),),
        )
    )
    a, b = page.share("a", M0), page.share("b", M1)
    assert [(row.sharing, row.limit_bytes, row.used_bytes) for row in (a, b)] == [
        ("mig", 10 * GIB, 6 * GIB),
        ("mig", 20 * GIB, 0),
    ]
    assert a.sm_utilization is None  # the driver has none of an instance
    assert page.slots() == [("a", M0, 1), ("b", M1, 1)]
    assert page.kinds() == []
    sums = {entry.device.uuid: entry.held.memory_bytes for entry in page.ledger.devices}
    assert sums == {G0: 0, M0: 10 * GIB, M1: 20 * GIB}, "no instance counts for its GPU, too"


@pytest.mark.parametrize(
    ("node", "scheme"),
    [
        (None, "unknown"),  # without the API server
        (Node("n"), "nvidia"),
        (Node("n", annotations={HAMI_KEYS.register: f"{G0},10,81920,100,A100,0,true:"}), "volcano"),
    ],
)
def test_the_nodes_register_shows_whose_an_instance_in_the_common_resource_is(node, scheme):
    """The MIG strategy ``single``: the resource and the ID are those of HAMi's plugin, too."""
    seen = observation(Grant("a", "main", "nvidia.com/gpu", (M0,), {ENV: M0}), gpus=MIG_GPUS)
    if node is not None:
        container = Container("main", {"nvidia.com/gpu": 1})
        pod = Pod(PodRef("a", "ml", "a"), containers=(container,), node="n", phase="Running")
        pods = with_node(pod_sample((pod,), complete=True), node)
        seen = msgspec.structs.replace(seen, pods=pods)
    page = Page(seen)
    (holding,) = page.ledger.holdings
    assert (holding.scheme.value, holding.share.device) == (scheme, M0)
    assert page.share("a", M0).used_bytes == 0


def test_one_container_may_have_instances_of_two_profiles():
    page = Page(
        observation(
            Grant("a", "main", "nvidia.com/mig-1g.10gb", (M0,), {ENV: f"{M0},{M1}"}),
            Grant("a", "main", "nvidia.com/mig-2g.20gb", (M1,), {ENV: f"{M0},{M1}"}),
            gpus=MIG_GPUS,
        )
    )
    assert page.slots() == [("a", M0, 1), ("a", M1, 1)]
    assert page.kinds() == []


def test_an_unknown_instance_is_missing_and_never_its_gpu():
    gone = "MIG-99999999-1111-5222-8333-444455556666"
    seen = observation(Grant("a", "main", "nvidia.com/mig-1g.10gb", (gone,), {}), gpus=MIG_GPUS)
    page = Page(seen)
    assert page.slots() == [("a", gone, 1)]
    assert page.kinds() == [ConflictKind.DEVICE_MISSING]


def test_replicas_of_an_instance_share_it_without_a_limit():
    resource = "nvidia.com/mig-1g.10gb"
    seen = observation(
        replica("a", f"{M0}::0", resource=resource, env={}), gpus=MIG_GPUS, replicas={M0: 2}
    )
    row = Page(seen).share("a", M0)
    assert (row.sharing, row.unlimited, row.limit_bytes) == ("mig-time-slicing", True, None)
    assert row.fair_share_bytes == 5 * GIB


HAMI = {ENV: G0, "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m"}


@pytest.mark.parametrize(
    ("device_id", "gpus", "device"), [(f"{G0}::0", WHOLE_GPUS, G0), (M0, MIG_GPUS, M0)]
)
def test_a_gpu_of_two_sharing_systems_is_a_conflict_and_counted_once(device_id, gpus, device):
    resource = "nvidia.com/mig-1g.10gb" if device_id == M0 else "nvidia.com/gpu"
    page = Page(
        observation(
            Grant("a", "main", resource, (device_id,), {ENV: device}),
            Grant("b", "main", "nvidia.com/gpu", (f"{G0}-4",), HAMI),
            gpus=gpus,
        )
    )
    (conflict,) = page.ledger.conflicts
    assert (conflict.kind, conflict.device) == (ConflictKind.DOUBLE_BOOKED, G0)
    assert conflict.detail == "several sharing systems allocate it: nvidia, volcano"
    assert [entry.device.uuid for entry in page.ledger.devices] == [one.uuid for one in gpus]
    assert page.slots() == sorted([("a", device, 1), ("b", G0, 1)], key=lambda one: one[1] != G0)


def test_an_id_of_no_known_form_is_reported():
    page = Page(observation(Grant("a", "main", "nvidia.com/gpu", ("tegra::0",), {})))
    (conflict,) = page.ledger.conflicts
    assert conflict.kind is ConflictKind.MALFORMED
    assert conflict.detail == "nvidia.com/gpu: device IDs of no known form: tegra::0"
    (holding,) = page.ledger.unplaced
    assert holding.scheme == "unknown"


def test_a_container_with_such_an_id_is_on_the_gpu_of_its_processes():
    """Nobody accuses it of a GPU that was not allocated to it."""
    grant = Grant("a", "main", "nvidia.com/gpu", ("tegra::0",), {})
    page = Page(observation(grant, processes=[(7, "a", "main", G0, GIB)]))
    assert page.kinds() == [ConflictKind.MALFORMED]
    assert page.slots() == [("a", G0, 1)]
    row = page.share("a")
    assert (row.scheme, row.used_bytes, row.limit_bytes, row.sharing) == (
        "unknown",
        GIB,
        None,
        None,
    )


def test_a_renamed_resource_is_read_only_if_its_name_is_set():
    seen = observation(Grant("a", "main", "example.com/gpu", (f"{G0}::0",), {ENV: G0}))
    assert Page(seen).slots() == []
    with other_names(["example.com/gpu"]):
        assert Page(seen).slots() == [("a", G0, 1)]


def test_a_pod_that_requests_a_renamed_resource_is_in_the_list_of_the_api_server():
    """So it has not ended, though that list leaves out pods without shared GPUs."""
    known = observation(Grant("a", "main", "example.com/gpu", (f"{G0}::0",), {ENV: G0}))
    document = sample.pod("a", "n", {"example.com/gpu": 1})
    document["metadata"]["uid"] = "a"
    with other_names(["example.com/gpu"]):
        pods = PODS.page(json.dumps({"kind": "PodList", "items": [document]}).encode()).objects
        page = Page(msgspec.structs.replace(known, pods=pod_sample(pods, complete=True)))
    assert page.slots() == [("a", G0, 1)]
    assert page.kinds() == []


def test_only_a_node_with_nvidias_plugin_has_its_series():
    seen = observation(Grant("b", "main", "nvidia.com/gpu", (f"{G0}-4",), HAMI))
    assert text(Page(seen)) == ""
    assert text(Page(Observation())) == ""


def test_a_node_without_the_new_schemes_serves_the_same_bytes(make_bench):
    """The demo's node has Volcano, HAMi, gpushare, gpu-manager and KubeShare, and each problem."""
    collectors = make_bench().collectors
    seen = observe(collectors, 1_790_000_000.0, WAIT_SECONDS, 600.0)

    def page(tables):
        builder = LedgerBuilder(codecs(GIB, GIB), "n")
        ledger = builder.ledger(seen)
        view = view_of(seen, builder.usage(seen), allocation_totals(ledger))
        return Renderer(tables).render(view).body(Format.TEXT)

    new = (REPLICAS, SHARING, RESOURCE_CLAIMS)
    whole = page(OWN_TABLES)
    assert whole.count(b"\nvgpu_container_memory_used_bytes{") > 5
    with registered(without=(NVIDIA_ROW, DRA_ROW)):
        assert page([table for table in OWN_TABLES if table not in new]) == whole


def test_the_answer_of_pod_resources_confirms_the_checkpoint():
    held = {("ml", "a", "main", "nvidia.com/gpu"): frozenset({f"{G0}::0"})}
    held = {PlaceKey(*place): ids for place, ids in held.items()}
    page = Page(observation(replica("a", f"{G0}::0"), held=held))
    (holding,) = page.ledger.holdings
    assert holding.sources == (Source.POD_RESOURCES, Source.CHECKPOINT)
    assert page.kinds() == []


class PlaceKey(msgspec.Struct, frozen=True):
    namespace: str
    pod: str
    container: str
    resource: str


def test_a_process_of_another_gpu_schedulers_pod_is_no_conflict_where_the_api_server_is_read():
    """The kubelet has no record of the share of KAI's pod: only its reservation pod has the GPU."""
    known = observation(replica("kai", G0), processes=((1, "a", "main", G0, GIB),))
    assert Page(known).kinds() == [ConflictKind.PROCESS_WITHOUT_ALLOCATION]
    document = sample.pod("a", "n", annotations={"gpu-fraction": "0.5"})
    document["metadata"]["uid"] = "a"
    reservation = sample.pod("kai", "n", {"nvidia.com/gpu": 1})
    reservation["metadata"]["uid"] = "kai"
    items = [document, reservation]
    pods = PODS.page(json.dumps({"kind": "PodList", "items": items}).encode()).objects
    page = Page(msgspec.structs.replace(known, pods=pod_sample(pods, complete=True)))
    assert page.kinds() == []
    assert page.share("a").used_bytes == GIB
