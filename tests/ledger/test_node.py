"""A whole node's ledger from real files in their real formats, read by the real sources."""

import msgspec
import pytest

from simulator.demo import demo
from simulator.node import SimulatedNode
from simulator.scheme_objects import claims
from tests.ledger.ledger_values import GPUS, NODE, A, B, kinds, pod, ref, where
from tests.support.fleet_node import fleet_node
from vgpu.ledger import ConflictKind, Statement, merge
from vgpu.ledger.node import NodeSamples, StatementCache, node_evidence, read_samples
from vgpu.ledger.statements import UNCOMMON
from vgpu.model.allocation import Device, Share
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    Grant,
    KubeletSample,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionDevice,
    RegionFile,
    ShimSample,
)
from vgpu.model.names import Phase, PodRef, Scheme, Source
from vgpu.model.units import GIB
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.volcano.codec import HAMI, Volcano
from vgpu.sources.kubelet import KubeletSource
from vgpu.sources.limits import LimitSource
from vgpu.sources.pods import PodFile
from vgpu.sources.runtime import ProcessSource
from vgpu.sources.shim import ShimSource

START = 1_790_000_000.0
CODECS = (Volcano(memory_factor=1024), Volcano(HAMI), Gpushare(), Gaia(), KubeShare())


class Held(msgspec.Struct, frozen=True):
    namespace: str
    pod: str
    container: str
    resource: str


def sampled(scenario, folder):
    """Everything that the sources find on the simulated node, as ``node_evidence`` takes it."""
    node = SimulatedNode(scenario, folder, START)
    node.write(5)
    paths = node.paths
    gpu = node.driver(lambda: 5.0).sample(START)
    shim = ShimSource(paths.shim_roots).sample()
    pids = {process.pid for process in gpu.processes}
    pids |= {slot.host_pid for file in shim.files for slot in file.region.processes}
    pods = PodFile(paths.pods_file, scenario.node).sample(START).pods
    kubelet = KubeletSource(paths.log_dir, paths.checkpoint).sample(START)
    names = {one.ref.uid: one.ref for one in pods if not one.terminal}
    return {
        "node": scenario.node,
        "gpu": gpu,
        "process": ProcessSource(paths.procfs, paths.cgroupfs).sample(pids),
        "shim": shim,
        "kubelet": kubelet,
        "limits": LimitSource(paths.limit_dirs).sample(),
        "held": {
            Held(named.namespace, named.name, grant.container, grant.resource): frozenset(
                grant.device_ids
            )
            for grant in kubelet.grants
            if (named := names.get(grant.pod_uid))
        },
        "pods": pods,
    }


@pytest.fixture
def samples(tmp_path):
    return sampled(demo(), tmp_path)


def running(scenario):
    """(UID, container) -> devices and bytes, of what really has shares."""
    return {
        (claim.pod.ref.uid, claim.container.name): {
            share.device: share.memory_bytes for share in claim.container.shares
        }
        for claim in claims(scenario, START)
        if claim.pod.running
    }


def held(ledger):
    found = {}
    for holding in ledger.holdings:
        of_container = found.setdefault((holding.pod.uid, holding.container), {})
        of_container[holding.share.device] = holding.share.memory_bytes
    return found


WHAT_IS_WRONG = {
    ConflictKind.OVERCOMMITTED,  # four systems that do not know of one another share the cores
    ConflictKind.HELD_BY_NOBODY_ALIVE,  # the region of a deleted pod
    ConflictKind.PROCESS_WITHOUT_ALLOCATION,  # a process of the host
}


def test_all_four_systems_are_read_alike_and_agree(samples):
    ledger = merge(node_evidence(CODECS, NodeSamples(**samples)))
    assert held(ledger) == running(demo())
    without_resource_claims = {Scheme.NONE, Scheme.DRA}  # the simulated node has no ResourceClaims
    assert {holding.scheme for holding in ledger.holdings} == set(Scheme) - without_resource_claims
    assert {holding.phase for holding in ledger.holdings} == {Phase.ASSIGNED}
    assert set(kinds(ledger)) == WHAT_IS_WRONG
    unused = {Source.OWN_CHECKPOINT, *UNCOMMON}
    assert ledger.read == set(Source) - unused
    assert ledger.unplaced == ledger.waiting == ledger.unproven == ledger.malformed == ()


def test_a_full_fleet_node_has_no_conflict(tmp_path):
    scenario = fleet_node(containers=16)
    ledger = merge(node_evidence(CODECS, NodeSamples(**sampled(scenario, tmp_path))))
    assert held(ledger) == running(scenario)
    assert ledger.conflicts == ()


@pytest.mark.parametrize("missing", ["pods", "held", "limits", "kubelet", "shim", "gpu"])
def test_without_a_source_what_is_left_is_still_true(samples, missing):
    ledger = merge(node_evidence(CODECS, NodeSamples(**(samples | {missing: None}))))
    truth = running(demo())
    for container, devices in held(ledger).items():
        assert container in truth
        for device, memory in devices.items():
            known = truth[container].get(device, 0)
            assert missing == "gpu" or memory in (None, known)
    assert set(kinds(ledger)) <= WHAT_IS_WRONG


def test_the_node_alone_knows_names_and_shares(samples):
    off = {"pods": None, "held": None}
    ledger = merge(node_evidence(CODECS, NodeSamples(**(samples | off))))
    assert held(ledger) == running(demo())
    assert all(holding.pod.name for holding in ledger.holdings)


def test_the_api_server_alone_has_the_reservations(samples):
    only = {key: samples[key] for key in ("node", "pods")}
    ledger = merge(node_evidence(CODECS, NodeSamples(**only)))
    assert set(where(ledger)) == set(running(demo()))
    assert {holding.source for holding in ledger.holdings} == {Source.ANNOTATIONS}
    assert ledger.conflicts == ()


def test_after_a_crossed_allocation_the_ledger_has_the_gpu_that_the_container_uses(samples):
    """The scheduler wrote the other GPU on the pod; kubelet, kernel and region know better."""
    one, two = (gpu.uuid for gpu in demo().gpus)

    def cross(text):
        return text.replace(one, "\0").replace(two, one).replace("\0", two)

    pods = tuple(
        msgspec.structs.replace(
            pod, annotations={key: cross(text) for key, text in pod.annotations.items()}
        )
        if pod.ref.name.startswith("detector")
        else pod
        for pod in samples["pods"]
    )
    ledger = merge(node_evidence(CODECS, NodeSamples(**(samples | {"pods": pods}))))
    assert held(ledger) == running(demo())
    (conflict,) = [c for c in ledger.conflicts if c.kind is ConflictKind.GPU_DIFFERS]
    assert conflict.pod.name.startswith("detector")
    assert conflict.statements[-1].source is Source.ANNOTATIONS


def test_what_is_remembered_makes_no_difference(samples):
    memory = StatementCache()
    for missing in ("", "pods", "", "kubelet", "held", ""):
        sampled = samples | ({missing: None} if missing else {})
        remembering, _ = read_samples(CODECS, NodeSamples(**sampled), memory=memory)
        assert remembering == node_evidence(CODECS, NodeSamples(**sampled))


# ---------------------------------------------------------------- what the demo has not


def driver(*processes, gpus=GPUS):
    driver_gpus = tuple(Gpu(gpu.uuid, gpu.index, {}, {}) for gpu in gpus)
    return GpuSample(driver_gpus, processes=processes, processes_known=frozenset({A, B}))


def kernel(**changes):
    owners = {5: ProcessOwner("c" * 64, "u1", "containerd")}
    sample = ProcessSample(owners, sees_host=True, live_pods=frozenset({"u1"}))
    return msgspec.structs.replace(sample, **changes)


def test_a_process_that_the_driver_lists_on_an_unknown_device_is_ignored_there():
    gpu = driver(GpuProcess(5, "GPU-c", GIB), GpuProcess(5, A, GIB))
    evidence = node_evidence((), NodeSamples(gpu=gpu, process=kernel()))
    assert [share.device for statement in evidence.statements for share in statement.shares] == [A]


def test_pids_of_another_namespace_make_no_statements():
    evidence = node_evidence(
        (), NodeSamples(gpu=driver(GpuProcess(5, A, GIB)), process=kernel(sees_host=False))
    )
    assert evidence.statements == ()
    assert Source.PROCESS not in evidence.read


def test_of_two_regions_of_one_container_the_first_counts():
    region = Region("v1.2", (RegionDevice(A, GIB, 0),), (), 0, 1, 2, 0, None, 1, 2)
    other = msgspec.structs.replace(region, devices=(RegionDevice(B, GIB, 0),))
    first = RegionFile("/regions/u1_main", "u1", "main", region)
    files = (first, RegionFile("/old/u1_main", "u1", "main", other))
    evidence = node_evidence((), NodeSamples(shim=ShimSample(files)))
    assert [statement.where for statement in evidence.statements] == ["/regions/u1_main"]


def test_a_region_inside_a_container_counts_where_the_plugin_made_none():
    region = Region("v1.2", (RegionDevice(A, GIB, 0),), (), 0, 1, 2, 0, None, 1, 2)
    bare = (
        (ProcessOwner("c" * 64, "u1", "containerd"), "/proc/5/root/tmp/cudevshr.cache", region),
    )
    names = {"c" * 64: ContainerName("team", "pod-u1", "main", "u1")}
    kubelet = KubeletSample({"u1": ref("u1")}, names)
    process = kernel(bare=bare)
    alone = node_evidence((), NodeSamples(gpu=driver(), process=process, kubelet=kubelet))
    assert where(merge(alone)) == {("u1", "main"): [A]}
    plugins = ShimSample((RegionFile("/regions/u1_main", "u1", "main", region),))
    both = node_evidence(
        (), NodeSamples(gpu=driver(), process=process, kubelet=kubelet, shim=plugins)
    )
    assert [statement.where for statement in both.statements] == ["/regions/u1_main"]


def test_our_own_checkpoint_is_a_source_like_the_others():
    own = [Statement(Source.OWN_CHECKPOINT, ref("u1"), "main", (Share(B, GIB),))]
    evidence = node_evidence((), NodeSamples(gpu=driver(), process=kernel(), own=own))
    assert Source.OWN_CHECKPOINT in evidence.read
    assert where(merge(evidence)) == {("u1", "main"): [B]}


def test_a_driver_that_missed_a_gpu_or_lost_one():
    gpu = msgspec.structs.replace(driver(gpus=GPUS[1:]), complete=False, lost=(A,))
    evidence = node_evidence((), NodeSamples(gpu=gpu))
    assert not evidence.devices_complete
    assert evidence.lost == {A}
    assert node_evidence((), NodeSamples()).devices == ()
    assert not node_evidence((), NodeSamples()).devices_complete


def test_there_is_as_much_to_share_as_the_plugin_registered():
    """Memory and cores may be scaled beyond the GPU."""
    scaled = Device(uuid=A, memory_bytes=20 * GIB, cores_milli=2000, slots=10, healthy=False)
    plain = Device(index=1)
    evidence = node_evidence((), NodeSamples(gpu=driver(), registered=(scaled, plain)))
    first, second, third = evidence.devices
    assert first == msgspec.structs.replace(scaled, index=0)
    assert (second.uuid, second.slots, third.slots) == (B, None, None)


def test_without_the_driver_the_gpus_are_those_that_are_registered_by_uuid():
    """Then it is unknown which GPU has an index."""
    gpu, same, nameless = Device(uuid=A, slots=10), Device(uuid=A, slots=4), Device(index=1)
    evidence = node_evidence((), NodeSamples(registered=(gpu, same, nameless)))
    assert evidence.devices == (gpu,)
    assert not evidence.devices_complete


ONE = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"


def test_kubeshares_holder_pods_hold_nothing_and_name_the_gpu_of_a_virtual_gpu():
    holder = PodRef("h1", "kube-system", f"kubeshare-vgpu-{NODE}-zxcvb")
    nameless = PodRef("h2", "kube-system", f"kubeshare-vgpu-{NODE}-")
    grants = tuple(Grant(uid, "main", "nvidia.com/gpu", (ONE,), {}) for uid in ("h1", "h2"))
    claim = {
        "kubeshare/gpu_request": "0.5",
        "kubeshare/gpu_limit": "1.0",
        "kubeshare/gpu_mem": "1073741824",
        "kubeshare/GPUID": "zxcvb",
    }
    evidence = node_evidence(
        (KubeShare(),),
        NodeSamples(
            node=NODE,
            gpu=GpuSample((Gpu(ONE, 0, {}, {}),)),
            process=kernel(live_pods=frozenset({"u1", "h1", "h2"})),
            kubelet=KubeletSample({"h1": holder, "h2": nameless}, {}, grants),
            pods=(pod("u1", annotations=claim),),
        ),
    )
    assert where(merge(evidence)) == {("u1", "main"): [ONE]}
