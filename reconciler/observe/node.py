"""One node as its own sources tell it, beside what the API server says of its pods.

Everything is read by the same collectors as the exporter's, side by side and with a deadline: a
driver that hangs costs what it knows, and nothing else. A view counts as complete only if the
sources that decide were read: a missing one only removes knowledge.
"""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from reconciler.cluster_index import is_holder
from reconciler.model import Coverage, Scope, Snapshot
from reconciler.observe import ClusterView, folders
from reconciler.observe.kinds import whole
from vgpu.facts import GpuSource
from vgpu.inventory import DetectedSchemes, Objects, Units, detect_schemes
from vgpu.kube import list_watch
from vgpu.kube.client import ApiClient
from vgpu.kube.documents import Keep
from vgpu.kube.kept_keys import shares_gpus
from vgpu.kube.objects import Pod
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.owners import container_name
from vgpu.ledger.usage import Usage, certain, usages
from vgpu.reasons import Reason, SourceError
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.registry import registry
from vgpu.sources.collector import Collector
from vgpu.sources.files import printable
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.node_sources import NodePaths, NodeSources
from vgpu.sources.observation import observe
from vgpu.sources.own_node import NodeWatch
from vgpu.sources.samples import NodeSample, Observation, pod_sample, with_node

TIMEOUT_SECONDS: Final = 10.0
"""What each source may take of a look."""

CLOSING_SECONDS: Final = 3.0
"""What the driver is given to let go."""

Told = Callable[[float], NodeSample]
"""Asks for the node's pods and the node itself; the argument is unix seconds. Raises SourceError.
"""


class NodeObserver:
    """Looks at one node. One thread asks."""

    def __init__(
        self,
        cluster: ApiClient | None,
        node: str,
        places: NodePaths,
        units: Units,
        *,
        continuous: bool = False,
        driver: GpuSource | None = None,
        told: Told | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """``cluster`` stays its maker's to close, after this; without it no pod is known.

        A ``continuous`` look follows the node's pods, another lists them. ``driver`` is let go by
        :meth:`close`. ``told`` is asked for the pods in place of the cluster. Raises SourceError
        NOT_INSTALLED if pod-resources is to be asked and cannot be.
        """
        self._node = node
        self._places = places
        self._units = units
        self._continuous = continuous
        self._driver = driver
        self._timeout = timeout
        self._watch: NodeWatch | None = None
        if told is None and cluster is not None:
            told = self._follow(cluster) if continuous else partial(_list, cluster, node)
        gpu = driver.sample if driver else None
        self._on = NodeSources.open(places).collectors(gpu, told)
        self._folders = Collector("folders", partial(_folders, places))
        self._mapped = Collector("mapped", partial(_mapped, places))
        self._bookkeeper = LedgerBuilder((), node)
        self._codecs: tuple[SchemeCodec, ...] = ()

    def view(self, now: float) -> ClusterView:
        """What is there; ``now`` is unix seconds. Takes at most three time-outs."""
        # One may use up all of its time; what the others brought meanwhile still counts.
        seen = observe(self._on, now, self._timeout, stale=2 * self._timeout)
        pods = seen.pods if isinstance(seen.pods, NodeSample) else None
        notes = list(self._failures())
        complete = set()
        if pods is not None:
            notes += (f"{each.subject}: {each.detail}" for each in pods.rejections)
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
        said = self._said(pods)
        ledger = self._kept_books(said).ledger(seen)
        if blind := ", ".join(_missing(seen)):
            notes.append(f"the node's own allocation records are incomplete: {blind}")
        elif Coverage.PODS in complete:
            complete.add(Coverage.LEDGER)
        usage = _usage(seen)
        if usage is not None:
            complete.add(Coverage.USAGE)
        found = folders.Found()
        if pods is not None and Coverage.PODS in complete:
            found = self._find_folders(pods, seen)
            notes += filter(None, (found.note, found.more))
            if not found.note:
                complete.add(Coverage.FOLDERS)
        placed = {folder.pod_uid for folder in found.folders}
        return ClusterView(
            Snapshot(
                now=now,
                scope=Scope.NODE,
                complete=frozenset(complete),
                nodes=(node,) if node else (),
                pods=tuple(pod for pod in pods.pods if _counts(pod, said, placed)) if pods else (),
                ledgers={self._node: ledger},
                folders=found.folders,
                usage=usage or (),
                live_pods=seen.process.live_pods if seen.process else None,
                continuous=self._continuous,
                notes=(*notes, *said.notes),
            ),
            said.codecs,
        )

    def mapped(self, path: str) -> bool:
        """Whether a process uses what is in a shim's folder now.

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
        """Look no longer, and let go of the driver, unless a call hangs in it."""
        if self._watch is not None:
            self._watch.close()
        if self._driver is not None and not (self._on.nvml and self._on.nvml.stuck):
            closing = threading.Thread(target=self._driver.close, name="closing", daemon=True)
            closing.start()
            closing.join(CLOSING_SECONDS)

    # ------------------------------------------------------------ parts of a look

    def _follow(self, cluster: ApiClient) -> Told:
        pods = list_watch.pods_of_node(cluster, self._node)
        node = partial(list_watch.read_node, cluster, self._node)
        self._watch = NodeWatch(pods, node, cluster.server)
        return self._watch.sample

    def _failures(self) -> Iterator[str]:
        """Which sources failed, and why."""
        for collector in self._on.all():
            health = collector.health()
            if not health.success:
                yield f"{health.name} is not read: {health.last_error}"

    def _said(self, pods: NodeSample | None) -> DetectedSchemes:
        """Who shares GPUs here, in which languages; in any where the API server does not tell."""
        if pods is None:
            unit_bytes = registry().default_units(self._units.by_row)
            return DetectedSchemes((), registry().codecs(unit_bytes))
        nodes = (pods.node,) if pods.node else ()
        sharing = tuple(pod for pod in pods.pods if shares_gpus(pod))
        return detect_schemes(Objects(nodes, sharing), self._units)

    def _kept_books(self, said: DetectedSchemes) -> LedgerBuilder:
        """The bookkeeper of these languages; another one has to read everything anew."""
        if said.codecs != self._codecs:
            self._codecs = said.codecs
            self._bookkeeper = LedgerBuilder(said.codecs, self._node)
        return self._bookkeeper

    def _find_folders(self, pods: NodeSample, seen: Observation) -> folders.Found:
        """The shims' folders; nothing that the API server or the kernel knows is an orphan."""
        live = _live_pods(seen)
        if not live:
            return folders.Found(
                note="the shims' folders are not judged: no cgroup of a pod is seen"
            )
        begun = time.monotonic()
        known = live.union(*map(_uids, pods.pods))
        if self._folders.begin(known):
            self._folders.finish(begun + self._timeout)
        found = self._folders.data(begun) if self._folders.ok else None
        if found is None:
            error = self._folders.health().last_error
            return folders.Found(note=f"the shims' folders are not seen: {error}")
        return found


# ---------------------------------------------------------------- what is asked


def _folders(places: NodePaths, known: frozenset[str]) -> folders.Found:
    return folders.find_folders(places.shim_roots, known.__contains__, places.procfs)


def _mapped(places: NodePaths, path: str) -> bool | SourceError:
    """Whether a folder is used, or why that cannot be told: a collector keeps no errors."""
    try:
        return folders.mapped(path, places.procfs)
    except SourceError as error:
        return error


def _list(cluster: ApiClient, node: str, _: float) -> NodeSample:
    """The node's pods and the node, read now. Raises SourceError; ABSENT if it has no pod."""
    selector = f"spec.nodeName={node}"
    with list_watch.translate_errors(cluster.server):
        pages, note = whole("pods", lambda: cluster.pods(keep=Keep.ALL, field_selector=selector))
    malformed = [each for page in pages for each in page.malformed]
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
    """Of the sources that decide where a container is, those that were not read."""
    kubelet, process = seen.kubelet, seen.process
    untold = kubelet is None or (kubelet.grants is None and kubelet.held is None)
    if untold or "kubelet" in seen.incomplete:
        yield "the kubelet's grants"
    if seen.own is None or seen.own.rejections:
        yield "our own device plugin's checkpoint"
    if process is None or not process.sees_host:
        yield "the host's processes"
    if process is None or process.live_pods is None:
        yield "cgroups"


def _usage(seen: Observation) -> tuple[Usage, ...] | None:
    """What is known of what containers use; None if not the driver or not the host was read."""
    gpu, process = seen.gpu, seen.process
    if gpu is None or process is None or not process.sees_host:
        return None
    names = seen.kubelet.containers if seen.kubelet else {}
    found = usages(gpu, process.owners, lambda owner, _: container_name(owner, names))
    return tuple(certain(found))


def _live_pods(seen: Observation) -> frozenset[str]:
    """UIDs of pods that have a cgroup; none where that is not known."""
    return (seen.process.live_pods if seen.process else None) or frozenset()


def _is_elsewhere(pods: NodeSample, seen: Observation) -> bool:
    """Whether the API server's pods are those of another machine: pods run here, but none of them.

    A wrong name would make an orphan of everything on this node.
    """
    live = _live_pods(seen)
    return bool(live) and live.isdisjoint(map(node_uid, pods.pods))


def _uids(pod: Pod) -> frozenset[str]:
    """What a folder may be named after: a static pod has two UIDs."""
    return frozenset({pod.ref.uid, node_uid(pod)})


def _counts(pod: Pod, said: DetectedSchemes, placed: set[str]) -> bool:
    """Whether a pod is part of the picture: it shares GPUs, or has a shim's folder."""
    if not placed.isdisjoint(_uids(pod)):
        return True
    return shares_gpus(pod) and (pod.ref.uid not in said.nvidia or is_holder(pod))
