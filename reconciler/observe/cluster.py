"""A whole cluster as its API server reports it: read once, or watched by a long-running loop.

The observer reads pods that share GPUs, nodes, KubeShare's SharePods, gpushare's ConfigMaps about
unhealthy GPUs, and by name the owners of locks that are not among those pods. It reads nodes before
pods, so that the list of pods has the pod that a node's lock serves, and pods before SharePods, so
that the list of SharePods has a holder pod's SharePod.
"""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final

from msgspec import structs

from reconciler.cluster_index import is_holder
from reconciler.ledger_cache import LedgerCache
from reconciler.model import Coverage, ObjectKind, Scope, Snapshot
from reconciler.observe import ClusterView
from reconciler.observe.kinds import Kinds, ListedKinds, Seen, Watched
from reconciler.observe.lock_owners import LockOwnerReader, named_owners
from reconciler.observe.owners import read_owners
from vgpu.inventory import (
    DetectedSchemes,
    Objects,
    Units,
    detect_schemes,
    doubt_notes,
    doubts_of,
)
from vgpu.kube.client import ApiClient
from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import Node, Pod
from vgpu.ledger.from_api import read_pod
from vgpu.reasons import SourceError
from vgpu.schemes.registry import registry
from vgpu.units import count

_UNKNOWN_HEALTH: Final = "gpushare's unhealthy GPUs are not known"


class _ClusterObserver:
    """Observes a cluster; ledgers of unchanged nodes are not computed again."""

    def __init__(self, cluster: ApiClient, units: Units, kinds: Kinds, *, continuous: bool) -> None:
        self._cluster = cluster
        self._units = units
        self._kinds = kinds
        self._continuous = continuous
        self._ledger_cache = LedgerCache()
        self._owners = LockOwnerReader(cluster.pod)

    def view(self, now: float) -> ClusterView:
        """The state of the cluster; ``now`` is unix seconds. Raises ClusterError, SourceError."""
        nodes = self._kinds.nodes()
        pods = self._kinds.pods()
        share_pods = self._kinds.share_pods()
        malformed = (*nodes.malformed, *pods.malformed, *share_pods.malformed)
        objects = Objects(nodes.objects, pods.objects, share_pods.objects, malformed=malformed)
        schemes = detect_schemes(objects, self._units)
        unhealthy, note = self._unhealthy(schemes)
        names = {(pod.ref.namespace, pod.ref.name) for pod in pods.objects}
        owners = self._owners.ask(
            [owner for owner in named_owners(nodes.objects, schemes.codecs) if owner not in names]
        )
        seen: dict[Coverage, Seen[Node] | Seen[Pod]] = {
            Coverage.NODES: nodes,
            Coverage.PODS: pods,
            Coverage.SHARE_PODS: share_pods,
        }
        return cluster_view(
            Snapshot(
                now=now,
                owners=read_owners(self._cluster.object_text, pods.objects, turn=int(now)),
                complete=frozenset(view for view, kind in seen.items() if kind.complete),
                continuous=self._continuous,
                lock_owners=owners.known,
                notes=tuple(
                    filter(None, (*(kind.note for kind in seen.values()), note, owners.note))
                ),
            ),
            objects,
            schemes,
            self._ledger_cache,
            unhealthy,
        )

    def close(self) -> None:
        """End all watches."""
        self._kinds.close()

    def _unhealthy(self, schemes: DetectedSchemes) -> tuple[Mapping[str, str], str]:
        """ConfigMaps of unhealthy GPUs, if a scheme in use has them, and why they are unread."""
        if not any(registry().row(codec).unhealthy_map for codec in schemes.codecs):
            return {}, ""
        try:
            return self._cluster.unhealthy_gpus(), ""
        except SourceError as error:
            return {}, f"{_UNKNOWN_HEALTH}: {error.detail}"
        except ClusterError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return {}, f"{_UNKNOWN_HEALTH}: {error.message}"


class ListingObserver(_ClusterObserver):
    """Observes once: everything is listed when it is asked for."""

    def __init__(self, cluster: ApiClient, units: Units) -> None:
        """The caller closes ``cluster``."""
        super().__init__(cluster, units, ListedKinds(cluster), continuous=False)


class WatchingObserver(_ClusterObserver):
    """Observes in a loop: everything is watched, and a view costs at most one small request."""

    def __init__(self, cluster: ApiClient, units: Units, *, kinds: Kinds | None = None) -> None:
        """The caller closes ``cluster``, after this observer; it is watched from now on."""
        super().__init__(cluster, units, kinds or Watched(cluster), continuous=True)


def cluster_view(
    known: Snapshot,
    objects: Objects,
    schemes: DetectedSchemes,
    ledger_cache: LedgerCache,
    unhealthy: Mapping[str, str],
) -> ClusterView:
    """The view of ``known`` with these objects and their ledgers; no ledgers without all pods.

    A ledger of some of the pods would show a GPU as free that is not.
    """
    pods = tuple(pod for pod in objects.pods if _shares(pod, schemes.nvidia))
    others = tuple(pod for pod in objects.pods if not _shares(pod, schemes.nvidia))
    notes = [*known.notes, *schemes.notes]
    if not known.continuous:
        notes += _unit_notes(objects, schemes)
    if others:
        what = "pod with GPUs or MIG instances of NVIDIA's own device plugin"
        notes.append(f"{count(len(others), what)}: only rules on Failed pods look at them")
    kinds = frozenset(ObjectKind)
    notes += (str(malformed) for malformed in objects.malformed if malformed.kind not in kinds)
    ledgers = {}
    if Coverage.PODS in known.complete:
        ledgers = ledger_cache.ledgers(objects.nodes, schemes.pods, schemes.codecs, unhealthy)
    return ClusterView(
        structs.replace(
            known,
            scope=Scope.CLUSTER,
            nodes=objects.nodes,
            pods=pods,
            nvidia_pods=others,
            share_pods=objects.share_pods,
            malformed=objects.malformed,
            ledgers=ledgers,
            notes=tuple(notes),
        ),
        schemes.codecs,
    )


def _unit_notes(objects: Objects, schemes: DetectedSchemes) -> Iterator[str]:
    """What contradicts the units of memory in force, for a plan by hand."""
    shares: dict[str, dict[str, list[int]]] = {}
    for pod in schemes.pods:
        claims = read_pod(pod, schemes.codecs).claims if pod.node else ()
        for claim in claims:
            sizes = shares.setdefault(pod.node, {}).setdefault(claim.scheme, [])
            sizes += (
                share.memory_bytes
                for allocation in claim.allocations
                for share in allocation.shares
                if share.memory_bytes is not None
            )
    yield from doubt_notes(doubts_of(objects.nodes, shares, registry().rows, schemes.unit_bytes))


def _shares(pod: Pod, nvidia: frozenset[str]) -> bool:
    """Whether the pod shares GPUs; a holder pod keeps a whole GPU for other pods to share."""
    return pod.ref.uid not in nvidia or is_holder(pod)
