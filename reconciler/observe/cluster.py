"""A whole cluster as its API server reports it: read once, or followed by a long-running loop.

What is read: pods that share GPUs, nodes, KubeShare's SharePods, gpushare's ConfigMaps about
unhealthy GPUs, and by name the owners of locks that are not among those pods. Nodes come before
pods, so that the pod which a node's lock serves is there to be seen, and pods before SharePods, so
that a holder pod's SharePod is.
"""

from collections.abc import Mapping
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
from vgpu.inventory import DetectedSchemes, Objects, Units, detect_schemes
from vgpu.kube.client import ApiClient
from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import Node, Pod
from vgpu.reasons import SourceError
from vgpu.schemes.registry import registry

_UNKNOWN_HEALTH: Final = "gpushare's unhealthy GPUs are not known"


class _ClusterObserver:
    """Looks at a cluster; what did not change since the look before is not judged again."""

    def __init__(self, cluster: ApiClient, units: Units, kinds: Kinds, *, continuous: bool) -> None:
        self._cluster = cluster
        self._units = units
        self._kinds = kinds
        self._continuous = continuous
        self._books = LedgerCache()
        self._owners = LockOwnerReader(cluster.pod)

    def view(self, now: float) -> ClusterView:
        """What is there; ``now`` is unix seconds. Raises ClusterError, SourceError."""
        nodes = self._kinds.nodes()
        pods = self._kinds.pods()
        share_pods = self._kinds.share_pods()
        malformed = (*nodes.malformed, *pods.malformed, *share_pods.malformed)
        objects = Objects(nodes.objects, pods.objects, share_pods.objects, malformed=malformed)
        said = detect_schemes(objects, self._units)
        unhealthy, note = self._unhealthy(said)
        names = {(pod.ref.namespace, pod.ref.name) for pod in pods.objects}
        owners = self._owners.ask(
            [each for each in named_owners(nodes.objects, said.codecs) if each not in names]
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
            said,
            self._books,
            unhealthy,
        )

    def close(self) -> None:
        """Look no longer."""
        self._kinds.close()

    def _unhealthy(self, said: DetectedSchemes) -> tuple[Mapping[str, str], str]:
        """What the ConfigMaps of unhealthy GPUs say, if somebody writes them; and why not."""
        if not any(registry().row(codec).unhealthy_map for codec in said.codecs):
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
    """For one look: everything is read when it is asked for."""

    def __init__(self, cluster: ApiClient, units: Units) -> None:
        """``cluster`` stays its maker's to close."""
        super().__init__(cluster, units, ListedKinds(cluster), continuous=False)


class WatchingObserver(_ClusterObserver):
    """For a loop: everything is followed, and a look costs at most one small request."""

    def __init__(self, cluster: ApiClient, units: Units, *, kinds: Kinds | None = None) -> None:
        """``cluster`` stays its maker's to close, after this; it is followed from now on."""
        super().__init__(cluster, units, kinds or Watched(cluster), continuous=True)


def cluster_view(
    known: Snapshot,
    objects: Objects,
    said: DetectedSchemes,
    books: LedgerCache,
    unhealthy: Mapping[str, str],
) -> ClusterView:
    """What is known of a look, with its objects and their ledgers; without all pods there are none.

    A ledger of some of the pods would call a GPU free that is not.
    """
    pods = tuple(pod for pod in objects.pods if _shares(pod, said.nvidia))
    others = tuple(pod for pod in objects.pods if not _shares(pod, said.nvidia))
    notes = [*known.notes, *said.notes]
    if others:
        told = "with GPUs or MIG instances of NVIDIA's own device plugin"
        notes.append(f"{len(others)} pods {told}: only rules on pods that have Failed look at them")
    kinds = frozenset(ObjectKind)
    notes += (str(each) for each in objects.malformed if each.kind not in kinds)
    ledgers = {}
    if Coverage.PODS in known.complete:
        ledgers = books.ledgers(objects.nodes, said.pods, said.codecs, unhealthy)
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
        said.codecs,
    )


def _shares(pod: Pod, nvidia: frozenset[str]) -> bool:
    """Whether it shares GPUs; a holder pod has a whole one, and keeps it for others to share."""
    return pod.ref.uid not in nvidia or is_holder(pod)
