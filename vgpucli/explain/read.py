"""The objects that `vgpu explain` needs: from dumps, or as few as possible from the API server."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from http import HTTPStatus
from typing import Final

import click
import msgspec

from reconciler.observe.owners import LockOwnerReader, named_owners
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.inventory import Objects, Units, detect_schemes
from vgpu.inventory.nvidia import advertised_units
from vgpu.kube.documents import Keep
from vgpu.kube.dump import items_of
from vgpu.kube.installation import AdmissionWebhook
from vgpu.kube.installation_kinds import MUTATING_WEBHOOKS
from vgpu.kube.kai_groups import KAI_KINDS
from vgpu.kube.kinds import NODES, POD_LABELS, PODS
from vgpu.kube.volcano_kinds import POD_GROUPS, QUEUES
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import SourceError
from vgpu.program.kube_flags import ReadDump, reread
from vgpu.quota.kueue_tree import KueueObjects, waits_for_kueue
from vgpu.quota.volcano_tree import VolcanoObjects
from vgpu.schemes.nvidia.resources import is_nvidia_resource
from vgpu.schemes.registry import registry
from vgpucli.doctor.read import INSTALLATION_KINDS, installed, installed_in_dumps
from vgpucli.explain.cluster_objects import ClusterObjects, Installation, ReadVolcano
from vgpucli.explain.kai_read import dumped_kai, kai_at
from vgpucli.explain.webhooks import PodWebhooks, ReadWebhooks
from vgpucli.inspect.read import (
    UNREAD_CLAIMS,
    Read,
    from_cluster,
    from_files,
    if_allowed,
    with_quotas,
)
from vgpucli.queue_objects import kueue_at, with_places
from vgpucli.volcano_objects import volcano_at, with_scheduler_of

MOST_NODES: Final = 32
"""Maximum number of nodes that are read by name; a list of 5,000 nodes takes ten large requests."""


EXPLAINED_KINDS: Final = frozenset(
    {*INSTALLATION_KINDS, MUTATING_WEBHOOKS.name, *(kind.name for kind in KAI_KINDS)}
)
"""The kinds of a dump that are read beside those of :func:`vgpucli.inspect.read.from_files`."""


def dumped(paths: Sequence[str]) -> ClusterObjects:
    """The objects of dumps. Raises click.ClickException."""
    file = reread(paths)
    read = from_files(
        paths,
        scheduling=True,
        queues=True,
        used=EXPLAINED_KINDS,
        read=file,
    )
    found = installed_in_dumps(paths, read.others, file)
    installation = None if found is None else cache(found)
    return ClusterObjects(
        read.objects,
        read.as_of,
        read.namespaces,
        read.quotas,
        read.gpu_quota,
        is_dump=True,
        notes=read.notes,
        pods_read=read.pods_read,
        claims_read=bool(read.objects.resource_claims.resource_claims),
        scheduling=read.scheduling,
        installation=installation,
        volcano=volcano_of_dumps(read, installation),
        webhooks=dumped_webhooks(paths, read.others, file),
        kueue=read.kueue,
        kai=dumped_kai(paths, file),
    )


def volcano_of_dumps(read: Read, installation: Installation | None) -> ReadVolcano | None:
    """How to read Volcano's objects from dumps; None if they have none.

    The configuration of its scheduler is looked for when it is asked for.
    """
    if not (read.volcano.has_queues or read.volcano.groups):
        return None
    return lambda _namespace, _name: with_scheduler_of(read.volcano, installation)


def volcano_for(
    cluster: ApiClient, installation: Installation, namespace: str, name: str
) -> VolcanoObjects:
    """Volcano's objects at the API server; of one that may not be listed the PodGroup's own."""
    volcano = volcano_at(cluster, namespace)
    groups = {(each.namespace, each.name): each for each in volcano.groups}
    group = groups.get((namespace, name))
    if group is None and POD_GROUPS.name in volcano.unread:
        group, _ = if_allowed(lambda: cluster.find(POD_GROUPS, namespace, name), "the PodGroup")
        own = (*volcano.groups, *([] if group is None else [group]))
        volcano = msgspec.structs.replace(volcano, groups=own)
    if group is not None and QUEUES.name in volcano.unread:
        queue_name = group.queue_name
        queue, _ = if_allowed(lambda: cluster.find(QUEUES, "", queue_name), "the Queue")
        if queue is not None and volcano.queue(queue.name) is None:
            volcano = msgspec.structs.replace(volcano, queues=(*volcano.queues, queue))
    return with_scheduler_of(volcano, installation)


def dumped_webhooks(
    paths: Sequence[str], kinds: Collection[str], file: ReadDump
) -> ReadWebhooks | None:
    """How to read the webhooks from dumps with these ``kinds``; None if they have none of them."""
    if MUTATING_WEBHOOKS.name not in kinds:
        return None

    def read(namespace: str, name: str) -> PodWebhooks:
        webhooks: list[AdmissionWebhook] = []
        of_pod: Mapping[str, str] | None = None
        for path in paths:
            content, _ = file(path)
            for kind, about, item in items_of(content, path):
                named = about.metadata.namespace, about.metadata.name
                with suppress(SourceError):
                    if kind == MUTATING_WEBHOOKS.name:
                        for of_one in MUTATING_WEBHOOKS.kept(item, path, Keep.ALL):
                            webhooks += of_one
                    elif kind == PODS.name and named == (namespace, name):
                        for _, labels in POD_LABELS.kept(item, path, Keep.ALL):
                            of_pod = labels
        return PodWebhooks(tuple(webhooks), of_pod)

    return read


def webhooks_at(cluster: ApiClient, namespace: str, name: str) -> PodWebhooks:
    """The webhooks at the API server, and the pod's labels, as far as they may be read."""
    pages, _ = if_allowed(
        lambda: cluster.optional_pages(MUTATING_WEBHOOKS), "MutatingWebhookConfigurations"
    )
    labelled, _ = if_allowed(lambda: cluster.find(POD_LABELS, namespace, name), "the pod")
    webhooks = None
    if pages is not None:
        of_all = (of_one for page in pages for of_one in page.objects)
        webhooks = tuple(each for of_one in of_all for each in of_one)
    return PodWebhooks(webhooks, None if labelled is None else labelled[1])


def for_pod(cluster: ApiClient, namespace: str, name: str) -> ClusterObjects:
    """What an explanation of the pod needs; of a bound pod only its node and its namespace.

    Raises ClusterError, NotFound if there is neither such a pod nor such a SharePod, and
    SourceError.
    """
    pod = _pod(cluster, namespace, name)
    node, claims = ("", False) if pod is None else (pod.node, pod.uses_resource_claims)
    read = _of_node(cluster, node, claims=claims)
    if pod is not None and not claims and _may_be_supplied(pod, read.objects.nodes):
        claims = True
        read = _of_node(cluster, node, claims=claims)
    objects = _with_pods(read.objects, () if pod is None else (pod,))
    unread = len(read.notes)
    read = with_quotas(msgspec.structs.replace(read, objects=objects), cluster, namespace)
    installation = cache(partial(installed, cluster))
    is_limited = bool(read.namespaces or read.quotas or read.gpu_quota)
    if pod is not None and pod.node and is_limited:
        objects = _with_namespace(cluster, objects, namespace)
    return ClusterObjects(
        objects,
        read.as_of,
        read.namespaces,
        read.quotas,
        read.gpu_quota,
        notes=read.notes,
        quotas_read=len(read.notes) == unread,
        claims_read=claims and not any(UNREAD_CLAIMS in note for note in read.notes),
        scheduling=read.scheduling,
        installation=installation,
        volcano=partial(volcano_for, cluster, installation),
        webhooks=partial(webhooks_at, cluster),
        kueue=_kueue_of(cluster, namespace)
        if pod is not None and waits_for_kueue(pod)
        else KueueObjects(),
        kai=partial(kai_at, cluster),
    )


def for_workload(cluster: ApiClient, namespace: str) -> ClusterObjects:
    """What an explanation of a workload needs: Kueue's objects. Raises ClusterError."""
    return ClusterObjects(Objects(), time.time(), kueue=_kueue_of(cluster, namespace))


def _kueue_of(cluster: ApiClient, namespace: str) -> KueueObjects:
    """Kueue's objects as far as the rights go, with places of the namespace's workloads."""
    return with_places(cluster, kueue_at(cluster, namespace), namespace)


def for_node(cluster: ApiClient, name: str) -> ClusterObjects:
    """What an explanation of the node needs: the node, its pods, and those that are not bound.

    Raises ClusterError, SourceError, and click.ClickException if there is no such node.
    """
    read = from_cluster(cluster, name, reads_resource_claims=False)
    (node,) = read.objects.nodes
    if not (registry().schemes_of(node) or advertised_units(node)):
        read = from_cluster(cluster, name)
    codecs = detect_schemes(read.objects, Units()).codecs
    known = {(pod.ref.namespace, pod.ref.name) for pod in read.objects.pods}
    owners = LockOwnerReader(cluster.pod).ask(
        [owner for owner in named_owners(read.objects.nodes, codecs) if owner not in known]
    )
    notes = (*read.notes, *filter(None, (owners.note,)))
    return ClusterObjects(read.objects, read.as_of, lock_owners=owners.known, notes=notes)


def _may_be_supplied(pod: Pod, nodes: Iterable[Node]) -> bool:
    """Whether a ResourceClaim may supply what a pod requests of NVIDIA's resources."""
    names = {name for name in pod.requested_units() if is_nvidia_resource(name)}
    advertised = {name for node in nodes for name in node.advertised}
    return not pod.node and bool(names) and not names & advertised


def _of_node(cluster: ApiClient, node: str, *, claims: bool) -> Read:
    """The objects of the pod's node; those of the cluster if that node is gone."""
    try:
        return from_cluster(cluster, node, reads_resource_claims=claims, scheduling=not node)
    except click.ClickException:  # there is no such node
        return from_cluster(cluster, "", reads_resource_claims=claims)


def _pod(cluster: ApiClient, namespace: str, name: str) -> Pod | None:
    """The pod; None if only a SharePod has the name."""
    try:
        return cluster.pod(namespace, name)
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        try:
            cluster.sharepod(namespace, name)
        except ClusterError as missing:
            if missing.status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                raise error from None
            raise
        return None


def _with_namespace(cluster: ApiClient, objects: Objects, namespace: str) -> Objects:
    """The objects with the pods of a namespace that has a quota, and the nodes of these pods."""
    pods = [pod for page in cluster.pods(namespace=namespace) for pod in page.objects]
    names = {pod.node for pod in pods} - {"", *(node.name for node in objects.nodes)}
    nodes = _named_nodes(cluster, names)
    return _with_pods(msgspec.structs.replace(objects, nodes=(*objects.nodes, *nodes)), pods)


def _named_nodes(cluster: ApiClient, names: Collection[str]) -> tuple[Node, ...]:
    """The nodes of these names that exist; each by itself, if this is less than a list."""
    if len(names) > MOST_NODES:
        return tuple(node for node in cluster.nodes() if node.name in names)
    named = (cluster.find(NODES, "", name) for name in sorted(names))
    return tuple(node for node in named if node is not None)


def _with_pods(objects: Objects, pods: Iterable[Pod]) -> Objects:
    by_uid = {pod.ref.uid: pod for pod in (*objects.pods, *pods)}
    return msgspec.structs.replace(objects, pods=tuple(by_uid.values()))
