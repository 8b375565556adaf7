"""Generated nodes of KAI Scheduler on which all is as it should be, seen by all sources of a node.

A node is drawn as a value. What its sources report follows from it: pods, the kubelet's records,
processes, regions of the isolator, and the driver.
"""

import msgspec
from hypothesis import strategies as st

from reconciler.model import Coverage, KernelLaunch, Scope, ShimFolder, Snapshot
from reconciler.observe.node import _device_pods, _usage
from tests.support.kai_pods import (
    LABEL_MIB,
    NODE,
    gpu,
    kai_node,
    replaced,
    reservation,
    running,
    tenant,
)
from vgpu.inventory import Objects, Units, detect_schemes
from vgpu.ledger.cluster import cluster
from vgpu.ledger.usage import MEMORY_USED
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    Grant,
    KubeletSample,
    LinkedProcess,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionDevice,
    RegionFile,
    RegionProcess,
    RegionUse,
    ShimSample,
)
from vgpu.model.objects import Container
from vgpu.model.units import MIB
from vgpu.schemes.kai.request import asked
from vgpu.schemes.registry import registry
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.samples import Observation, OwnSample, pod_sample, with_names, with_node

NOW = 1_790_000_000.0
HOUR = 3600.0
TOTAL = ("memory_total_bytes",)

EVERYTHING = frozenset(Coverage)


class TenantPod(msgspec.Struct, frozen=True):
    """A tenant of some groups, by their numbers; ``used_mib`` of each, None without a process."""

    groups: tuple[int, ...]
    percent: int
    in_mib: bool
    used_mib: int | None
    kernel_age: float
    second_container: bool


class KaiNode(msgspec.Struct, frozen=True):
    """A healthy node: each of ``gpus`` GPUs is a group, and a whole one belongs to another pod."""

    gpus: int
    tenants: tuple[TenantPod, ...]
    has_isolator: bool
    has_label: bool
    reads_api: bool
    whole_gpu: bool


@st.composite
def kai_nodes(draw):
    """Healthy nodes: the tenants of a GPU have at most all of it."""
    gpus = draw(st.integers(1, 3))
    free = [95] * gpus
    tenants = []
    for _ in range(draw(st.integers(1, 5))):
        groups = tuple(sorted(draw(st.sets(st.integers(0, gpus - 1), min_size=1, max_size=2))))
        most = min(free[group] for group in groups)
        if most < 5:
            continue
        percent = draw(st.integers(5, most))
        for group in groups:
            free[group] -= percent + 1
        size = LABEL_MIB * percent // 100
        used = draw(st.none() | st.integers(0, size - 50))
        tenants.append(
            TenantPod(
                groups,
                percent,
                draw(st.booleans()),
                used,
                draw(st.sampled_from([0.0, 60.0, 100 * HOUR])),
                draw(st.booleans()),
            )
        )
    return KaiNode(gpus, tuple(tenants), *(draw(st.booleans()) for _ in range(4)))


class Seen:
    """What the sources of a node report, and what the reconciler makes of it."""

    def __init__(self, node):
        self.node = node
        self.has_label = node.has_label or any(each.in_mib for each in node.tenants)
        self.object = kai_node(LABEL_MIB if self.has_label else None, node.gpus + node.whole_gpu)
        used = sorted({group for each in node.tenants for group in each.groups})
        self.reservations = [
            reservation(f"g{group}", gpu(group), since=NOW - 200 * HOUR) for group in used
        ]
        self.tenants = [self._tenant(number) for number in range(len(node.tenants))]
        self.pods = (*self.reservations, *self.tenants)

    def _tenant(self, number):
        of_pod = self.node.tenants[number]
        mib = str(LABEL_MIB * of_pod.percent // 100) if of_pod.in_mib else ""
        groups = tuple(f"g{group}" for group in of_pod.groups)
        pod = tenant(
            f"tenant-{number}", groups, f"0.{of_pod.percent:02}", mib, since=NOW - 150 * HOUR
        )
        if of_pod.second_container:
            statuses = (*pod.statuses, running("sidecar", NOW - HOUR))
            containers = (*pod.containers, Container("sidecar"))
            pod = replaced(pod, {"containers": containers, "statuses": statuses})
        return pod

    def observation(self, pods=None):
        """All sources of the node; the API server's pods only if it reads them.

        ``pods`` are those of an incomplete list.
        """
        node = self.node
        uuids = [gpu(number) for number in range(node.gpus + node.whole_gpu)]
        owners, processes, files, linked = {}, [], [], {}
        for number, pod in enumerate(self.tenants):
            of_pod, pid, uid = node.tenants[number], 1000 + number, pod.ref.uid
            devices = [gpu(group) for group in of_pod.groups]
            if of_pod.used_mib is not None:
                owners[pid] = ProcessOwner(f"{uid}-main", uid, "containerd")
                processes += (GpuProcess(pid, each, of_pod.used_mib * MIB) for each in devices)
                limit = asked(pod).limit_mib(LABEL_MIB) if node.has_isolator else None
                linked[pid] = LinkedProcess(limit_bytes=None if limit is None else limit * MIB)
            if node.has_isolator:
                files.append(self._region(number, pod, devices))
        names = {pod.ref.uid: pod.ref for pod in self.pods}
        containers = {
            f"{pod.ref.uid}-{each.name}": ContainerName(
                pod.ref.namespace, pod.ref.name, each.name, pod.ref.uid
            )
            for pod in self.pods
            for each in pod.containers
        }
        sample = GpuSample(
            tuple(
                Gpu(each, index, {}, {TOTAL: LABEL_MIB * MIB, MEMORY_USED: 0})
                for index, each in enumerate(uuids)
            ),
            processes=tuple(processes),
            processes_known=frozenset(uuids),
        )
        listed = pods
        pods = with_node(pod_sample(self.pods, complete=True), self.object)
        kubelet = KubeletSample(names, containers, tuple(self._grants()))
        pods = pods if node.reads_api else None
        if listed is not None:
            pods = pod_sample(listed, complete=False)
        return Observation(
            gpu=sample,
            process=ProcessSample(
                owners, True, frozenset(names), reads_maps=True, linked=linked, libraries=()
            ),
            shim=ShimSample(tuple(files)),
            kubelet=with_names(kubelet, pods),
            own=OwnSample(()),
            pods=pods,
            at=NOW,
        )

    def _grants(self):
        for pod in self.reservations:
            uuid = pod.annotations["run.ai/reserve_for_gpu_index"]
            yield Grant(pod.ref.uid, "resource-reservation", "nvidia.com/gpu", (uuid,), {})

    def _region(self, number, pod, devices):
        of_pod = self.node.tenants[number]
        limit = asked(pod).limit_mib(LABEL_MIB) * MIB
        used = of_pod.used_mib
        use = RegionUse(0, 0, (used or 0) * MIB, 0, (used or 0) * MIB, 0)
        slot = RegionProcess(7, 1000 + number, 1, (use,) * len(devices))
        region = Region(
            layout="v1.2",
            devices=tuple(RegionDevice(each, limit, 0) for each in devices),
            processes=() if used is None else (slot,),
            proc_num=0 if used is None else 1,
            utilization_switch=0,
            recent_kernel=2,
            priority=0,
            last_kernel_time=int(NOW - of_pod.kernel_age),
            major_version=1,
            minor_version=1,
        )
        path = f"/usr/local/vgpu/containers/{pod.ref.uid}_main/usage.cache"
        return RegionFile(path, pod.ref.uid, "main", region)

    def ledger_and_usage(self, pods=None):
        """The ledger of the node's own sources, and the use of its containers."""
        builder, seen = LedgerBuilder(registry().codecs({}), NODE), self.observation(pods)
        return builder.ledger(seen), builder.usage(seen)

    def node_snapshot(self):
        """What the reconciler of the node sees."""
        seen = self.observation()
        builder = LedgerBuilder(registry().codecs({}), NODE)
        ledger = builder.ledger(seen)
        pods = seen.pods.pods if seen.pods else ()
        folders = (
            ShimFolder("/usr/local/vgpu/containers/gone_main", "gone", "main", (1, 1, 1), False),
        )
        return Snapshot(
            NOW,
            Scope.NODE,
            EVERYTHING if pods else EVERYTHING - {Coverage.PODS, Coverage.NODES},
            nodes=(self.object,) if pods else (),
            pods=pods,
            ledgers={NODE: ledger},
            folders=folders,
            usage=_usage(seen) or (),
            last_kernels=tuple(
                KernelLaunch(each.pod_uid, each.container, float(each.region.last_kernel_time))
                for each in seen.shim.files
            ),
            device_pods=_device_pods(seen),
            live_pods=seen.process.live_pods,
        )

    def cluster_snapshot(self):
        """What the reconciler of the cluster sees: the API server alone."""
        objects = Objects((self.object,), registry().resolved(self.pods))
        schemes = detect_schemes(objects, Units())
        ledgers = cluster(objects.nodes, schemes.pods, schemes.codecs, lists_all=True).ledgers
        return Snapshot(
            NOW,
            Scope.CLUSTER,
            EVERYTHING,
            nodes=objects.nodes,
            pods=schemes.pods,
            ledgers=ledgers,
            share_pods=(),
        )
