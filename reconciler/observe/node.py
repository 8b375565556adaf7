"""One node as its own sources report it, with its pods from the API server.

The exporter's collectors read all sources, in parallel and with a deadline: a driver that hangs
costs its own data, and nothing else. A part counts as complete only if the sources that decide
it were read: a missing source only removes knowledge.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from reconciler.cluster_index import is_holder
from reconciler.model import Coverage, KernelLaunch, Scope, Snapshot
from reconciler.observe import ClusterView, folders
from reconciler.observe.kinds import whole
from vgpu.apiserver import list_watch
from vgpu.apiserver.client import ApiClient
from vgpu.inventory import (
    DetectedSchemes,
    NodeDoubt,
    Objects,
    Units,
    detect_schemes,
    doubts_of,
    sizes_by_scheme,
)
from vgpu.kube.documents import Keep
from vgpu.kube.kept_keys import shares_gpus
from vgpu.ledger import Ledger
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.usage import Usage, certain, container_name, unclear_use, usages
from vgpu.model.facts import GpuSource
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.registry import registry
from vgpu.sources.collector import Collector
from vgpu.sources.files import printable
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.node_sources import NodePaths, NodeSources
from vgpu.sources.observation import observe
from vgpu.sources.pods import NodeWatch
from vgpu.sources.resource_claims import ResourceClaimSource
from vgpu.sources.samples import NodeSample, Observation, pod_sample, with_node

TIMEOUT_SECONDS: Final = 10.0
"""Maximum time to wait for each source, in seconds."""

CLOSING_SECONDS: Final = 3.0
"""Maximum time to wait for the driver to close, in seconds."""

_ReadPods = Callable[[float], NodeSample]
"""Asks for the node's pods and the node itself; the argument is unix seconds. Raises SourceError.
"""


class NodeObserver:
    """Observes one node. One thread calls it."""

    def __init__(
        self,
        cluster: ApiClient | None,
        node: str,
        places: NodePaths,
        units: Units,
        *,
        continuous: bool = False,
        driver: GpuSource | None = None,
        read_pods: _ReadPods | None = None,
        resource_claims: bool = False,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """The caller closes ``cluster``, after this observer; without it no pod is known.

        A ``continuous`` observer watches the node's pods, another lists them. :meth:`close` closes
        ``driver``. ``read_pods`` reads the pods in place of the cluster. ``resource_claims``: read
        the node's ResourceClaims and ResourceSlices, too. Raises SourceError NOT_INSTALLED if
        pod-resources is to be asked and cannot be.
        """
        self._node = node
        self._places = places
        self._units = units
        self._continuous = continuous
        self._driver = driver
        self._timeout = timeout
        self._watch: NodeWatch | None = None
        if read_pods is None and cluster is not None:
            read_pods = self._follow(cluster) if continuous else partial(_list, cluster, node)
        gpu = driver.sample if driver else None
        sources = NodeSources.open(places)
        self._collectors = sources.collectors(gpu, read_pods)
        kubelet = sources.kubelet
        if resource_claims and cluster is not None and kubelet is not None:
            source = ResourceClaimSource(cluster, node, lambda: kubelet.newest)
            self._collectors.resource_claims = Collector("dra", source.sample)
        self._folders = Collector("folders", partial(_folders, places))
        self._mapped = Collector("mapped", partial(_mapped, places))
        self._builder = LedgerBuilder((), node)
        self._codecs: tuple[SchemeCodec, ...] = ()

    def view(self, now: float) -> ClusterView:
        """The state of the node; ``now`` is unix seconds. Takes at most three time-outs."""
        # One source may use up all of its time; the data of the others still counts.
        seen = observe(self._collectors, now, self._timeout, stale=2 * self._timeout)
        pods = seen.pods if isinstance(seen.pods, NodeSample) else None
        notes = list(self._failures())
        complete = set()
        if pods is not None:
            notes += (
                f"{rejection.object_name}: {rejection.detail}" for rejection in pods.rejections
            )
        if pods is not None and pods.complete:
            if _is_elsewhere(pods, seen):
                notes.append(
                    f"none of {self._node}'s pods has a cgroup here: is this another node?"
                    " (--node-name)"
                )
                pods, seen = None, msgspec.structs.replace(seen, pods=None)
            else:
                complete.add(Coverage.PODS)
        node = pods.node if pods else None
        if node is not None:
            complete.add(Coverage.NODES)
        schemes = self._schemes(pods)
        ledger = self._kept_builder(schemes).ledger(seen)
        if blind := ", ".join(_missing(seen)):
            notes.append(f"the node's own allocation records are incomplete: {blind}")
        elif Coverage.PODS in complete:
            complete.add(Coverage.LEDGER)
        usage = _usage(seen)
        if usage is not None:
            complete.add(Coverage.USAGE)
        shim_folders = folders.Found()
        if pods is not None and Coverage.PODS in complete:
            shim_folders = self._find_folders(pods, seen)
            notes += filter(None, (shim_folders.note, shim_folders.more))
            if not shim_folders.note:
                complete.add(Coverage.FOLDERS)
        placed = {folder.pod_uid for folder in shim_folders.folders}
        return ClusterView(
            Snapshot(
                now=now,
                scope=Scope.NODE,
                complete=frozenset(complete),
                nodes=(node,) if node else (),
                pods=tuple(pod for pod in pods.pods if _counts(pod, schemes, placed))
                if pods
                else (),
                nvidia_pods=tuple(
                    pod
                    for pod in pods.pods
                    if pod.ref.uid in schemes.nvidia and not _counts(pod, schemes, placed)
                )
                if pods
                else (),
                ledgers={self._node: ledger},
                folders=shim_folders.folders,
                usage=usage or (),
                last_kernels=tuple(_last_kernels(seen, now)),
                device_pods=_device_pods(seen),
                live_pods=seen.process.live_pods if seen.process else None,
                continuous=self._continuous,
                notes=(*notes, *schemes.notes),
                unit_doubts=self._unit_doubts(node, ledger, schemes),
            ),
            schemes.codecs,
        )

    def _unit_doubts(
        self, node: Node | None, ledger: Ledger, schemes: DetectedSchemes
    ) -> tuple[NodeDoubt, ...]:
        """What contradicts the units in force; nothing where the Node object is unknown."""
        if node is None:
            return ()
        sizes = {node.name: sizes_by_scheme(ledger.holdings)}
        return doubts_of([node], sizes, registry().rows, schemes.unit_bytes)

    def mapped(self, path: str) -> bool:
        """Whether a process uses the files of a shim's folder now.

        Raises SourceError: as :func:`reconciler.observe.folders.mapped`, and TIMEOUT.
        """
        begun = time.monotonic()
        if self._mapped.begin(path):
            self._mapped.finish(begun + self._timeout)
        used = self._mapped.data(begun)
        if used is None:
            raise SourceError(Reason.TIMEOUT, printable(path), self._mapped.health().last_error)
        if isinstance(used, SourceError):
            raise used
        return used

    def close(self) -> None:
        """End the watch, and close the driver, unless a call hangs in it."""
        if self._watch is not None:
            self._watch.close()
        if self._driver is not None and not (self._collectors.nvml and self._collectors.nvml.stuck):
            closing = threading.Thread(target=self._driver.close, name="closing", daemon=True)
            closing.start()
            closing.join(CLOSING_SECONDS)

    # ------------------------------------------------------------ parts of a view

    def _follow(self, cluster: ApiClient) -> _ReadPods:
        pods = list_watch.pods_of_node(cluster, self._node)
        node = partial(list_watch.read_node, cluster, self._node)
        self._watch = NodeWatch(pods, node, cluster.server)
        return self._watch.sample

    def _failures(self) -> Iterator[str]:
        """Which sources failed, and why."""
        for collector in self._collectors.all():
            health = collector.health()
            if not health.success:
                yield f"{health.name} is not read: {health.last_error}"

    def _schemes(self, pods: NodeSample | None) -> DetectedSchemes:
        """The schemes that share GPUs here; all schemes if the API server's pods are not known."""
        if pods is None:
            unit_bytes = registry().default_units(self._units.by_row)
            return DetectedSchemes((), registry().codecs(unit_bytes))
        nodes = (pods.node,) if pods.node else ()
        sharing = tuple(pod for pod in pods.pods if shares_gpus(pod))
        return detect_schemes(Objects(nodes, sharing), self._units)

    def _kept_builder(self, schemes: DetectedSchemes) -> LedgerBuilder:
        """The ledger builder of these schemes; a new one has to read everything again."""
        if schemes.codecs != self._codecs:
            self._codecs = schemes.codecs
            self._builder = LedgerBuilder(schemes.codecs, self._node)
        return self._builder

    def _find_folders(self, pods: NodeSample, seen: Observation) -> folders.Found:
        """The shims' folders; pods that the API server or the kernel knows have no orphans."""
        live = _live_pods(seen)
        if not live:
            return folders.Found(
                note="the shims' folders are not judged: no cgroup of a pod is seen"
            )
        begun = time.monotonic()
        known = live.union(*map(_uids, pods.pods))
        if self._folders.begin(known):
            self._folders.finish(begun + self._timeout)
        shim_folders = self._folders.data(begun) if self._folders.ok else None
        if shim_folders is None:
            error = self._folders.health().last_error
            return folders.Found(note=f"the shims' folders are not seen: {error}")
        return shim_folders


# ---------------------------------------------------------------- what is asked


def _folders(places: NodePaths, known: frozenset[str]) -> folders.Found:
    return folders.find_folders(places.shim_roots, known.__contains__, places.procfs)


def _mapped(places: NodePaths, path: str) -> bool | SourceError:
    """Whether a folder is used, or why that is unknown: a collector keeps no errors."""
    try:
        return folders.mapped(path, places.procfs)
    except SourceError as error:
        return error


def _list(cluster: ApiClient, node: str, _: float) -> NodeSample:
    """The node's pods and the node, read now. Raises SourceError; ABSENT if it has no pod."""
    selector = f"spec.nodeName={node}"
    with list_watch.translate_errors(cluster.server):
        pages, note = whole("pods", lambda: cluster.pods(keep=Keep.ALL, field_selector=selector))
    malformed = [unread for page in pages for unread in page.malformed]
    every = (pod for page in pages for pod in page.objects)
    pods = pod_sample(every, complete=not note, malformed=malformed)
    if not pods.pods and not malformed:
        raise SourceError(Reason.ABSENT, cluster.server, f"no pod is on {node} (--node-name)")
    try:
        return with_node(pods, list_watch.read_node(cluster, node))
    except SourceError as error:
        return with_node(pods, None, (error.rejection(),))


# ---------------------------------------------------------------- what it is worth


def _missing(seen: Observation) -> Iterator[str]:
    """The unread sources among those that decide where a container is."""
    kubelet, process = seen.kubelet, seen.process
    no_grants = kubelet is None or (kubelet.grants is None and kubelet.held is None)
    if no_grants or "kubelet" in seen.incomplete:
        yield "the kubelet's grants"
    if seen.own is None or seen.own.rejections:
        yield "our own device plugin's checkpoint"
    if process is None or not process.sees_host:
        yield "the host's processes"
    if process is None or process.live_pods is None:
        yield "cgroups"


def _usage(seen: Observation) -> tuple[Usage, ...] | None:
    """The known usage of containers; None if the driver or the host was not read."""
    gpu, process = seen.gpu, seen.process
    if gpu is None or process is None or not process.sees_host:
        return None
    names = seen.kubelet.containers if seen.kubelet else {}
    usage = usages(gpu, process.owners, lambda owner, _: container_name(owner, names))
    return tuple(certain(usage, unclear_use(gpu, process, usage)))


def _device_pods(seen: Observation) -> Mapping[str, frozenset[str]]:
    """UIDs of the pods with a process on each device, where all of its processes are known."""
    gpu, process = seen.gpu, seen.process
    if gpu is None or process is None or not process.sees_host:
        return {}
    pods: dict[str, set[str]] = {device: set() for device in gpu.processes_known}
    for one in gpu.processes:
        if one.pid not in process.owners:
            pods.pop(one.device, None)
        elif one.device in pods and (owner := process.owners[one.pid]) is not None:
            pods[one.device].add(owner.pod_uid)
    for one in gpu.unplaced:
        is_of_host = one.pid in process.owners and process.owners[one.pid] is None
        for device in () if is_of_host else gpu.gpus:
            if device.parent == one.device:
                pods.pop(device.uuid, None)
    return {device: frozenset(uids) for device, uids in pods.items()}


def _last_kernels(seen: Observation, now: float) -> Iterator[KernelLaunch]:
    """When each container last launched a kernel; no time that is still to come."""
    for file in seen.shim.files if seen.shim else ():
        launched_at = file.region.last_kernel_time
        if launched_at is not None and 0 <= launched_at <= now:
            yield KernelLaunch(file.pod_uid, file.container, float(launched_at))


def _live_pods(seen: Observation) -> frozenset[str]:
    """UIDs of pods that have a cgroup; none if cgroups were not read."""
    return (seen.process.live_pods if seen.process else None) or frozenset()


def _is_elsewhere(pods: NodeSample, seen: Observation) -> bool:
    """Whether the API server's pods are of another machine: pods run here, but none of these.

    With a wrong node name, everything on this node would look like an orphan.
    """
    live = _live_pods(seen)
    return bool(live) and live.isdisjoint(map(node_uid, pods.pods))


def _uids(pod: Pod) -> frozenset[str]:
    """The UIDs that a folder's name may have: a static pod has two."""
    return frozenset({pod.ref.uid, node_uid(pod)})


def _counts(pod: Pod, schemes: DetectedSchemes, placed: set[str]) -> bool:
    """Whether the snapshot has the pod: it shares GPUs, or has a shim's folder."""
    if not placed.isdisjoint(_uids(pod)):
        return True
    return shares_gpus(pod) and (pod.ref.uid not in schemes.nvidia or is_holder(pod))
