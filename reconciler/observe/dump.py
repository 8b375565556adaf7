"""A cluster as ``kubectl get nodes,pods,sharepods,configmaps -A -o json`` has printed it.

A dump does not show that it is complete; parts that it certainly lacks are reported. Where it has
no SharePods, they count as seen only if no object in it uses KubeShare.
"""

from collections.abc import Iterable, Iterator

from reconciler.cluster_index import PENDING, is_holder
from reconciler.ledger_cache import LedgerCache
from reconciler.model import Coverage, ObjectKind, Snapshot
from reconciler.observe import ClusterView
from reconciler.observe.cluster import cluster_view
from reconciler.observe.owners import named_owners
from vgpu.inventory import Objects, Units, detect_schemes, with_resource_claims
from vgpu.inventory.kai_shares import unchecked_note
from vgpu.kube.documents import Keep
from vgpu.kube.dump import DumpItems, decode_dump, ignored_text, is_cut, nothing_in_it
from vgpu.kube.kept_keys import shares_gpus
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.program.resource_names import settle_by_dumps
from vgpu.quota.limits import cluster_quotas
from vgpu.schemes.registry import registry


class DumpObserver:
    """Observes a dump. Every view is the same."""

    def __init__(self, content: bytes, object_name: str, units: Units) -> None:
        """``object_name`` is the file's name, for errors."""
        self._content = content
        self._object_name = object_name
        self._units = units

    def view(self, now: float) -> ClusterView:
        """What the dump has; ``now`` is when it was taken. Raises SourceError MALFORMED."""
        items = DumpItems.of(self._content, self._object_name)
        settle_by_dumps([(items, self._object_name)])
        dump = decode_dump(items, self._object_name, keep=Keep.ALL)
        ignored = ignored_text(dump.others)
        if dump.is_foreign:
            raise SourceError(Reason.MALFORMED, self._object_name, nothing_in_it(ignored))
        nodes = tuple({node.name: node for node in dump.nodes}.values())
        sharing, resource_claims = with_resource_claims(
            (pod for pod in _each(dump.pods) if pod.uses_resource_claims or shares_gpus(pod)),
            {
                resource_claim.uid: resource_claim for resource_claim in dump.resource_claims
            }.values(),
            {one.name: one for one in dump.resource_slices}.values(),
        )
        objects = Objects(
            nodes,
            registry().resolved(sharing),
            _each(dump.share_pods),
            dump.unhealthy,
            tuple({(unread.kind, unread.ref): unread for unread in dump.malformed}.values()),
            resource_claims,
        )
        schemes = detect_schemes(objects, self._units)
        by_name = {(pod.ref.namespace, pod.ref.name): pod for pod in dump.pods}
        owners = {owner: by_name.get(owner) for owner in named_owners(nodes, schemes.codecs)}
        malformed_kinds = {unread.kind for unread in dump.malformed}
        missing = {
            Coverage.NODES: ""
            if dump.nodes or ObjectKind.NODE in malformed_kinds
            else "the dump has no nodes",
            Coverage.PODS: "" if dump.total else "the dump has no pods",
            Coverage.SHARE_PODS: (
                "the dump has no SharePods, though KubeShare is in use"
                if not (dump.share_pods or ObjectKind.SHARE_POD in malformed_kinds)
                and uses_share_pods(objects)
                else ""
            ),
        }
        cut = is_cut(self._content, self._object_name)
        notes = [note for note in missing.values() if note]
        notes += [f"{ignored} ignored"] if ignored else []
        notes += _undated(dump.pods)
        notes += unchecked_note(objects.pods, lists_all=dump.lists_all)
        if cut:
            notes.append("the dump is one page of a longer list: nothing in it is complete")
        complete = frozenset(view for view, note in missing.items() if not (note or cut))
        if not cut:
            complete |= {Coverage.QUOTAS}
        if dump.resource_claims and not cut:
            complete |= {Coverage.RESOURCE_CLAIMS}
        spaces = {pod.ref.namespace for pod in objects.pods}
        quotas = cluster_quotas(dump.namespaces, dump.resource_quotas, dump.gpu_quota, spaces)
        return cluster_view(
            Snapshot(
                now=now,
                complete=complete,
                lock_owners=owners,
                namespaces={} if cut else {each.name: each.labels for each in dump.namespaces},
                quotas=quotas,
                quota_namespaces=() if cut else dump.namespaces,
                resource_quotas=dump.resource_quotas,
                dated_by_status=True,
                notes=tuple(notes),
            ),
            objects,
            schemes,
            LedgerCache(),
            dump.unhealthy,
            lists_all=dump.lists_all,
        )

    def close(self) -> None:
        """Nothing is open."""


def _undated(pods: Iterable[Pod]) -> Iterator[str]:
    """The note about waiting pods whose last change is not in the dump: kubectl leaves it out.

    Pods that have ended have the time of their end.
    """
    undated = {
        pod.ref.uid
        for pod in pods
        if pod.phase == PENDING and pod.node and pod.status_at is None and shares_gpus(pod)
    }
    if undated:
        who = f"{len(undated)} waiting pods" if len(undated) > 1 else "1 waiting pod"
        yield (
            f"the time of the last change is missing of {who}, and is estimated from conditions"
            " and starts: kubectl get --show-managed-fields prints it"
        )


def _each(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Each pod once, though several lists were put together; the last one counts."""
    return tuple({pod.ref.uid: pod for pod in pods}.values())


def uses_share_pods(objects: Objects) -> bool:
    """Whether a system that takes SharePods is in use."""
    keys: set[str] = set()
    for node in objects.nodes:
        keys.update(node.annotations)
    for pod in objects.pods:
        keys.update(pod.annotations, pod.labels)
    holders = filter(is_holder, objects.pods)
    return registry().uses_share_pods(keys) or not all(map(registry().is_reservation, holders))
