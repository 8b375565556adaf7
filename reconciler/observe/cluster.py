"""A whole cluster as its API server reports it: read once, or watched by a long-running loop.

The observer reads pods that share GPUs, nodes, KubeShare's SharePods, gpushare's ConfigMaps about
unhealthy GPUs, and by name the owners of locks that are not among those pods. It reads nodes before
pods, so that the list of pods has the pod that a node's lock serves, and pods before SharePods, so
that the list of SharePods has a holder pod's SharePod. It reads ResourceClaims before pods, so that
the list of pods has each pod that a ResourceClaim is reserved for, unless the pod is gone.
"""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from msgspec import structs

from reconciler.cluster_index import is_holder
from reconciler.ledger_cache import LedgerCache
from reconciler.model import Coverage, ObjectKind, Scope, Snapshot
from reconciler.observe import ClusterView
from reconciler.observe.kinds import Kinds, ListedKinds, Seen, Watched
from reconciler.observe.owners import LockOwnerReader, named_owners, read_owners
from reconciler.observe.queues import seen_queues
from reconciler.policy import Labels
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.inventory import (
    DetectedSchemes,
    Objects,
    Units,
    detect_schemes,
    doubts_of,
    with_resource_claims,
)
from vgpu.kube.dump import GPU_QUOTA, GPU_QUOTA_NAMESPACE
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.objects import Namespace, Node, Pod, ResourceQuota
from vgpu.model.reasons import SourceError
from vgpu.model.resource_claims import ResourceClaim, ResourceSlice
from vgpu.model.units import count
from vgpu.program.resource_names import settle_by_cluster, unknown_names
from vgpu.quota.limits import NamespaceQuota, cluster_quotas, has_gpu_admission
from vgpu.schemes.kai.groups import doubted_groups
from vgpu.schemes.registry import registry

_OBSERVED: Final = (
    "they are evicted after they have failed; what else is wrong with them is reported"
    " (act_on_schemes)"
)
_UNKNOWN_HEALTH: Final = "gpushare's unhealthy GPUs are not known"


class _ClusterObserver:
    """Observes a cluster; ledgers of unchanged nodes are not computed again."""

    def __init__(
        self,
        cluster: ApiClient,
        units: Units,
        kinds: Kinds,
        *,
        continuous: bool,
        namespaces: bool,
        quotas: bool,
        resource_claims: bool,
        queues: bool,
    ) -> None:
        self._cluster = cluster
        self._reads_resource_claims = resource_claims
        self._reads_quotas = quotas
        self._reads_namespaces = namespaces
        self._units = units
        self._kinds = kinds
        self._continuous = continuous
        self._ledger_cache = LedgerCache(keeps_held=queues)
        self._owners = LockOwnerReader(cluster.pod)

    def view(self, now: float) -> ClusterView:
        """The state of the cluster; ``now`` is unix seconds. Raises ClusterError, SourceError."""
        nodes = self._kinds.nodes()
        if not self._continuous and settle_by_cluster(self._cluster, nodes.objects):
            nodes = self._kinds.nodes()
        seen_resource_claims, slices = Seen[ResourceClaim](), Seen[ResourceSlice]()
        if self._reads_resource_claims:
            seen_resource_claims = self._kinds.resource_claims()
            slices = self._kinds.resource_slices()
        pods = self._kinds.pods()
        share_pods = self._kinds.share_pods()
        malformed = (
            *(*nodes.malformed, *pods.malformed, *share_pods.malformed),
            *(*seen_resource_claims.malformed, *slices.malformed),
        )
        resource_claims = ClusterResourceClaims()
        if self._reads_resource_claims:
            sharing, resource_claims = with_resource_claims(
                pods.objects, seen_resource_claims.objects, slices.objects
            )
            pods = structs.replace(pods, objects=sharing)
        objects = Objects(
            nodes.objects,
            registry().resolved(pods.objects),
            share_pods.objects,
            malformed=malformed,
            resource_claims=resource_claims,
        )
        schemes = detect_schemes(objects, self._units)
        unhealthy, note = self._unhealthy(schemes)
        names = {(pod.ref.namespace, pod.ref.name) for pod in pods.objects}
        owners = self._owners.ask(
            [owner for owner in named_owners(nodes.objects, schemes.codecs) if owner not in names]
        )
        reads_namespaces = self._reads_namespaces or self._reads_quotas
        namespaces = self._kinds.namespaces() if reads_namespaces else Seen[Namespace]()
        quotas: Mapping[str, NamespaceQuota] = {}
        resource_quotas = Seen[ResourceQuota]()
        quota_note = ""
        if self._reads_quotas:
            spaces = {pod.ref.namespace for pod in pods.objects}
            resource_quotas = self._kinds.resource_quotas()
            quotas, quota_note = self._quotas(namespaces, resource_quotas, nodes.objects, spaces)
        seen: dict[Coverage, Seen[Node] | Seen[Pod]] = {
            Coverage.NODES: nodes,
            Coverage.PODS: pods,
            Coverage.SHARE_PODS: share_pods,
        }
        complete = {view for view, kind in seen.items() if kind.complete}
        if self._reads_quotas and namespaces.complete and not quota_note:
            complete.add(Coverage.QUOTAS)
        if self._reads_resource_claims and seen_resource_claims.complete:
            complete.add(Coverage.RESOURCE_CLAIMS)
        queues = seen_queues(self._kinds.queues(), self._cluster.config_map)
        return cluster_view(
            Snapshot(
                now=now,
                kueue=queues.kueue,
                volcano=queues.volcano,
                kai=queues.kai,
                owners=read_owners(self._cluster.object_text, pods.objects, turn=int(now)),
                complete=frozenset(complete),
                continuous=self._continuous,
                lock_owners=owners.known,
                namespaces=labels_of(namespaces),
                quotas=quotas,
                quota_namespaces=namespaces.objects if self._reads_quotas else (),
                resource_quotas=resource_quotas.objects,
                notes=tuple(
                    filter(
                        None,
                        (
                            *(kind.note for kind in seen.values()),
                            seen_resource_claims.note,
                            slices.note,
                            namespaces.note,
                            quota_note,
                            note,
                            owners.note,
                            *queues.notes,
                        ),
                    )
                ),
            ),
            objects,
            schemes,
            self._ledger_cache,
            unhealthy,
            lists_all=True,
        )

    def close(self) -> None:
        """End all watches."""
        self._kinds.close()

    def _quotas(
        self,
        namespaces: Seen[Namespace],
        quotas: Seen[ResourceQuota],
        nodes: Sequence[Node],
        spaces: Iterable[str],
    ) -> tuple[dict[str, NamespaceQuota], str]:
        """The quotas of the namespaces, and why some may be missing, "" if none is.

        ``spaces`` are the namespaces of pods.
        """
        config, note = None, quotas.note or "; ".join(map(str, quotas.malformed))
        if has_gpu_admission(nodes):
            try:
                config = self._cluster.config_map(GPU_QUOTA_NAMESPACE, GPU_QUOTA)
            except ClusterError as error:
                if error.status != HTTPStatus.FORBIDDEN:
                    raise
                note = note or f"gpu-admission's quotas are not seen: {error.message}"
        return cluster_quotas(namespaces.objects, quotas.objects, config, spaces), note

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

    def __init__(
        self,
        cluster: ApiClient,
        units: Units,
        *,
        namespaces: bool = False,
        quotas: bool = False,
        resource_claims: bool = False,
    ) -> None:
        """The caller closes ``cluster``. ``namespaces``: read the labels of Namespaces, too.

        ``quotas``: read the quotas of namespaces, too. ``resource_claims``: read ResourceClaims and
        ResourceSlices, too.
        """
        super().__init__(
            cluster,
            units,
            ListedKinds(cluster, resource_claims=resource_claims),
            continuous=False,
            namespaces=namespaces,
            quotas=quotas,
            resource_claims=resource_claims,
            queues=False,
        )


class WatchingObserver(_ClusterObserver):
    """Observes in a loop: everything is watched, and a view costs at most one small request."""

    def __init__(
        self,
        cluster: ApiClient,
        units: Units,
        *,
        namespaces: bool = False,
        quotas: bool = False,
        resource_claims: bool = False,
        queues: bool = False,
        kinds: Kinds | None = None,
    ) -> None:
        """The caller closes ``cluster``, after this observer; it is watched from now on.

        ``namespaces``: read the labels of Namespaces, too. ``quotas``: read the quotas, too.
        ``resource_claims``: read ResourceClaims and ResourceSlices, too. ``queues``: read the
        objects of systems with queues, too.
        """
        watched = kinds or Watched(
            cluster,
            namespaces=namespaces,
            quotas=quotas,
            resource_claims=resource_claims,
            queues=queues,
        )
        super().__init__(
            cluster,
            units,
            watched,
            continuous=True,
            namespaces=namespaces,
            quotas=quotas,
            resource_claims=resource_claims,
            queues=queues,
        )


def labels_of(namespaces: Seen[Namespace]) -> Labels:
    """The labels by name; none if not all Namespaces are seen, since they may be out of date."""
    known = namespaces.objects if namespaces.complete else ()
    return {namespace.name: namespace.labels for namespace in known}


def cluster_view(
    known: Snapshot,
    objects: Objects,
    schemes: DetectedSchemes,
    ledger_cache: LedgerCache,
    unhealthy: Mapping[str, str],
    *,
    lists_all: bool = False,
) -> ClusterView:
    """The view of ``known`` with these objects and their ledgers; no ledgers without all pods.

    A ledger of some of the pods would show a GPU as free that is not. ``lists_all`` is whether the
    pods are certainly those of all namespaces.
    """
    pods = tuple(pod for pod in objects.pods if _shares(pod, schemes.nvidia))
    others = tuple(pod for pod in objects.pods if not _shares(pod, schemes.nvidia))
    notes = [*known.notes, *unknown_names(), *schemes.notes]
    if others:
        what = "pod with GPUs or MIG instances of NVIDIA's own device plugin"
        notes.append(f"{count(len(others), what)}: {_OBSERVED}")
    kinds = frozenset(ObjectKind)
    notes += (str(malformed) for malformed in objects.malformed if malformed.kind not in kinds)
    if Coverage.PODS in known.complete:
        ledgers = ledger_cache.ledgers(
            objects.nodes,
            schemes.pods,
            schemes.codecs,
            unhealthy,
            schemes.unit_bytes,
            resource_claims=objects.resource_claims,
            lists_all=lists_all,
            doubted_groups=doubted_groups(objects.pods),
        )
        doubts = ledger_cache.doubts
    else:
        ledgers = {}
        doubts = doubts_of(objects.nodes, {}, registry().rows, schemes.unit_bytes)
    return ClusterView(
        structs.replace(
            known,
            scope=Scope.CLUSTER,
            nodes=objects.nodes,
            pods=pods,
            nvidia_pods=others,
            share_pods=objects.share_pods,
            malformed=objects.malformed,
            resource_claims=objects.resource_claims,
            ledgers=ledgers,
            notes=tuple(notes),
            unit_doubts=doubts,
            unit_bytes=schemes.unit_bytes,
            held=ledger_cache.held,
        ),
        schemes.codecs,
    )


def _shares(pod: Pod, nvidia: frozenset[str]) -> bool:
    """Whether the pod shares GPUs; a holder pod keeps a whole GPU for other pods to share."""
    return pod.ref.uid not in nvidia or is_holder(pod)
