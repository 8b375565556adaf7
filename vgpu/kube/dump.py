"""The output of ``kubectl get nodes,pods,sharepods,configmaps -A -o json``; pure."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from vgpu.io.yaml_documents import yaml_documents
from vgpu.kube import wire
from vgpu.kube.api_kind import ANY_LIST, ANY_OBJECT, ApiKind, unread
from vgpu.kube.decode import Content, decode
from vgpu.kube.disruption import DisruptionBudget
from vgpu.kube.documents import Keep
from vgpu.kube.errors import one_line
from vgpu.kube.kinds import (
    BUDGETS,
    CONFIG_MAPS,
    DEVICE_CONFIGS,
    KINDS,
    NAMESPACES,
    NODE_UNITS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    SHARE_PODS,
)
from vgpu.kube.scheduling_objects import (
    SCHEDULING_NODES,
    PlacedPod,
    SchedulingNode,
    SchedulingObjects,
    scheduling_pods,
)
from vgpu.model.objects import MalformedObject, Namespace, Node, Pod, ResourceQuota
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import ResourceClaim, ResourceSlice
from vgpu.schemes.kai.config_map import is_shared_gpu
from vgpu.schemes.kai.groups import groups_of
from vgpu.schemes.kai.keys import KAI_NAMESPACE, RESERVATION_NAMESPACES
from vgpu.schemes.name_evidence import (
    HAMI_LABEL,
    VOLCANO_CONFIG,
    ConfiguredNames,
    configured_names,
)

_UNHEALTHY: Final = "unhealthy-gpu-"
"""Prefix of the names of gpushare's ConfigMaps; the node's name follows."""


GPU_QUOTA_NAMESPACE: Final = "kube-system"
GPU_QUOTA: Final = "gpuquota"
"""gpu-admission's ConfigMap of quotas (its defaults)."""

_VERSIONS: Final = {kind.name: (kind.api_version, *kind.older) for kind in KINDS}
"""The API versions of each kind, since other groups have a Node or a Pod, too."""

_LIST: Final = "List"
"""The end of the kind of a list."""

DEEPEST_LIST: Final = 8
"""Maximum number of lists within each other."""

_OF_SYSTEM: Final = frozenset({"kube-system", KAI_NAMESPACE})
"""Namespaces whose pods are in each list of all namespaces."""

_QUOTED: Final = 60
"""Maximum number of quoted bytes of a file that is no JSON."""


class _Status(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


_STATUS: Final = msgspec.json.Decoder(_Status)


class Dump(msgspec.Struct, frozen=True):
    """What ``kubectl get … -o json`` printed.

    Attributes:
        nodes, pods: those of the API server's lists.
        share_pods: KubeShare's SharePods.
        namespaces: the Namespaces.
        unhealthy: the text of gpushare's ``unhealthy-gpu-<node>`` ConfigMaps, by node.
        total: number of pods in the dump, including those that are not kept.
        others: number of other objects, by kind.
        malformed: the unreadable objects of all these kinds.
        resource_quotas: the ResourceQuotas.
        gpu_quota: the data of gpu-admission's ConfigMap; None if it is not there.
        resource_claims, resource_slices: those of dynamic resource allocation.
        budgets: the PodDisruptionBudgets.
        scheduling: what kube-scheduler reads of all nodes and pods, if that was asked for.
        also: the objects of the further kinds that were asked for, by the key of their kind.
        config_maps: the data of the further ConfigMaps that were asked for, by namespace and name.
        shared_gpu: likewise of those by which KAI Scheduler passes GPUs to containers.
        pod_namespaces: the namespaces of all pods, including those that are not kept.
        has_whole_groups: whether a pod is in a GPU group of KAI Scheduler, and it is not one page
            of a longer list.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    unhealthy: Mapping[str, str] = {}
    total: int = 0
    others: Mapping[str, int] = {}
    malformed: tuple[MalformedObject, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    resource_quotas: tuple[ResourceQuota, ...] = ()
    gpu_quota: Mapping[str, str] | None = None
    resource_claims: tuple[ResourceClaim, ...] = ()
    resource_slices: tuple[ResourceSlice, ...] = ()
    budgets: tuple[DisruptionBudget, ...] = ()
    scheduling: SchedulingObjects = SchedulingObjects()
    also: Mapping[str, tuple[Any, ...]] = {}
    config_maps: Mapping[tuple[str, str], Mapping[str, str]] = {}
    shared_gpu: Mapping[tuple[str, str], Mapping[str, str]] = {}
    pod_namespaces: frozenset[str] = frozenset()
    has_whole_groups: bool = False

    def of(self, kind: ApiKind[Any]) -> tuple[Any, ...]:
        """The objects of a further kind that was asked for."""
        return self.also.get(kind.key, ())

    @property
    def lists_all(self) -> bool:
        """Whether it shows that it has the pods of all namespaces, where one is in a GPU group.

        Such a list has pods of the system, and of others; lists of two namespaces look the same.
        So the namespace of reservation pods must be there, too: itself, or one of its pods.
        """
        names = {*(each.name for each in self.namespaces), *self.pod_namespaces}
        has_system = not _OF_SYSTEM.isdisjoint(self.pod_namespaces)
        has_reservations = not RESERVATION_NAMESPACES.isdisjoint(names)
        has_others = bool(self.pod_namespaces - RESERVATION_NAMESPACES - _OF_SYSTEM)
        return self.has_whole_groups and has_system and has_others and has_reservations

    @property
    def is_foreign(self) -> bool:
        """Whether it has no object that can be used."""
        used = self.nodes or self.total or self.share_pods or self.unhealthy or self.malformed
        also = self.config_maps or any(self.also.values())
        return not (used or also) and CONFIG_MAPS.name not in self.others


class DumpItems(msgspec.Struct, frozen=True):
    """A dump whose objects have been found, to be read several times.

    Attributes:
        content: the bytes of the dump.
        items: its objects, each with its kind and its name.
    """

    content: bytes
    items: tuple[tuple[str, wire.AnyObject, Content], ...]

    @classmethod
    def of(cls, content: bytes, object_name: str) -> "DumpItems":
        """The objects of a dump. Raises SourceError as :func:`decode_dump`."""
        return cls(content, tuple(items_of(content, object_name)))


class _LabelledMeta(msgspec.Struct, frozen=True):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Labelled(msgspec.Struct, frozen=True):
    metadata: _LabelledMeta = _LabelledMeta()


_LABELLED: Final = msgspec.json.Decoder(_Labelled)


def labels_in_dump(
    content: bytes | DumpItems, object_name: str = "dump"
) -> Mapping[str, Mapping[str, str]]:
    """All labels of the dump's objects by UID; unreadable objects have none.

    Raises SourceError MALFORMED.
    """
    return {meta.uid: meta.labels or {} for meta in _labelled(content, object_name)}


def marks_in_dump(
    content: bytes | DumpItems, key: str, object_name: str = "dump"
) -> Mapping[str, str]:
    """The label of this key, else the annotation, of the dump's objects that have one.

    Objects are ``<namespace>/<name>``; a Namespace is ``/<name>``. Raises SourceError MALFORMED.
    """
    marks = {}
    for meta in _labelled(content, object_name):
        mark = {**(meta.annotations or {}), **(meta.labels or {})}.get(key)
        if mark is not None:
            marks[f"{meta.namespace}/{meta.name}"] = mark
    return marks


def _labelled(content: bytes | DumpItems, object_name: str) -> Iterator[_LabelledMeta]:
    """The metadata of all readable objects. Raises SourceError MALFORMED."""
    for _, _, item in items_of(content, object_name):
        try:
            yield decode(item, _LABELLED, object_name).metadata
        except SourceError:
            continue


def ignored_text(others: Mapping[str, int]) -> str:
    """The objects of a dump that are not used, such as "2 Services and 1 Deployment"; "" if none.

    ConfigMaps belong to a dump: some of them list unhealthy GPUs.
    """
    kinds = sorted(kind for kind in others if kind != CONFIG_MAPS.name)
    parts = [f"{others[kind]} {_plural(kind, others[kind])}" for kind in kinds]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def nothing_in_it(ignored: str) -> str:
    """The problem of a dump without any object that is used."""
    return f"it has neither nodes nor pods, only {ignored}" if ignored else "it has no objects"


def _plural(kind: str, count: int) -> str:
    if count == 1 or kind.endswith("points"):
        return kind
    if kind.endswith("y"):
        return f"{kind[:-1]}ies"
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"


def items_of(
    content: bytes | DumpItems, object_name: str = "dump"
) -> Iterator[tuple[str, wire.AnyObject, Content]]:
    """The objects in the output of ``kubectl get … -o json``, each with its kind and its name.

    Documents may stand one after another, and lists in lists, as where files were put together.
    Raises SourceError as :func:`decode_dump`.
    """
    if isinstance(content, DumpItems):
        yield from content.items
        return
    for document, decoded in documents_of(content, object_name):
        yield from _items(document, decoded, object_name, DEEPEST_LIST)


def is_cut(content: bytes | DumpItems, object_name: str = "dump") -> bool:
    """Whether a document is one page of an API server's answer."""
    text = content.content if isinstance(content, DumpItems) else content
    try:
        documents = list(documents_of(text, object_name))
    except SourceError:
        return False
    return any(listed.metadata.continue_token for _, listed in documents)


def documents_of(content: bytes, object_name: str) -> Iterator[tuple[Content, wire.AnyList]]:
    """The documents of a file: JSON or YAML, one or several. Raises SourceError MALFORMED."""
    try:
        documents: Iterable[tuple[Content, wire.AnyList]]
        documents = [(content, decode(content, ANY_LIST, object_name))]
    except SourceError as error:
        if content.lstrip()[:1] == b"":
            raise
        texts = _further_documents(content) or _yaml_documents(content)
        if not texts:
            if content.lstrip()[:1] == b"{":
                raise
            start = one_line(content[:_QUOTED].decode("utf-8", "replace"))
            detail = f"it is not JSON, and begins with {start!r}"
            raise SourceError(Reason.MALFORMED, object_name, detail) from error
        documents = ((text, decode(text, ANY_LIST, object_name)) for text in texts)
    for document, decoded in documents:
        if not decoded.kind:
            detail = "not a Kubernetes object: it has no kind"
            raise SourceError(Reason.MALFORMED, object_name, detail)
        if decoded.kind == "Status":
            status = decode(document, _STATUS, object_name)
            refusal = one_line(f"{status.reason or 'failure'}: {status.message}")
            detail = f"the API server refused it: {refusal}"
            raise SourceError(Reason.MALFORMED, object_name, detail)
        yield document, decoded


def joined(files: Sequence[tuple[str, bytes]]) -> bytes:
    """The documents of several files, by their names, as one. Raises SourceError MALFORMED."""
    if len(files) == 1:
        return files[0][1]
    documents = (
        bytes(document)
        for object_name, content in files
        for document, _ in documents_of(content, object_name)
    )
    return b'{"kind": "List", "items": [' + b",".join(documents) + b"]}"


def _items(
    document: Content, decoded: wire.AnyList, object_name: str, depth: int
) -> Iterator[tuple[str, wire.AnyObject, Content]]:
    """The objects of a document; those of the lists in it, too."""
    kind_of_all = decoded.kind.removesuffix(_LIST)  # for items without a kind
    for item in (document,) if decoded.listed is None else decoded.listed:
        about = decode(item, ANY_OBJECT, object_name)
        if about.kind.endswith(_LIST) and depth and item is not document:
            inner = decode(item, ANY_LIST, object_name)
            if inner.listed is not None:
                yield from _items(item, inner, object_name, depth - 1)
                continue
        yield about.kind or kind_of_all, about, item


def _further_documents(content: bytes) -> list[bytes]:
    """JSON documents that stand one after another; [] if it is anything else."""
    try:
        text = content.decode()
        decoder, place, documents = json.JSONDecoder(), 0, []
        while place < len(text):
            if text[place].isspace():
                place += 1
                continue
            _, end = decoder.raw_decode(text, place)
            documents.append(text[place:end].encode())
            place = end
    except (ValueError, RecursionError):
        return []
    return documents if len(documents) > 1 else []


def _yaml_documents(content: bytes) -> list[bytes]:
    """The objects of YAML documents as JSON; [] if it is no YAML of Kubernetes."""
    if content.lstrip()[:1] in (b"{", b"["):
        return []
    try:
        documents = [each for each in yaml_documents(content, fast=True) if each is not None]
        if not all(isinstance(each, dict) and "kind" in each for each in documents):
            return []
        return [msgspec.json.encode(each) for each in documents]
    except (ValueError, TypeError, OverflowError, RecursionError):  # or what JSON does not have
        return []


def names_in_dump(
    content: bytes | DumpItems, object_name: str = "dump"
) -> tuple[list[ConfiguredNames], list[Node]]:
    """The names of resources in schedulers' ConfigMaps, and the nodes with all their resources.

    Raises SourceError MALFORMED.
    """
    configs: list[ConfiguredNames] = []
    nodes: list[Node] = []
    for kind, about, item in items_of(content, object_name):
        if about.api_version and about.api_version not in _VERSIONS.get(kind, ()):
            continue
        try:
            if kind == NODES.name:
                nodes += NODE_UNITS.kept(item, object_name, Keep.ALL)
            elif kind == CONFIG_MAPS.name:
                ((place, text),) = DEVICE_CONFIGS.kept(item, object_name, Keep.ALL)
                key, _, value = HAMI_LABEL.partition("=")
                labels = decode(item, _LABELLED, object_name).metadata.labels or {}
                system = "hami" if labels.get(key) == value else "volcano"
                if text and (system == "hami" or place == "/".join(VOLCANO_CONFIG)):
                    names = configured_names(text)
                    configs.append(ConfiguredNames(system, f"ConfigMap {place}", names))
        except SourceError:  # reported where the object itself is read
            continue
    return configs, nodes


def bound_pods_in_dump(content: bytes | DumpItems, object_name: str = "dump") -> Iterator[Pod]:
    """The pods that are bound to a node, with all that they request. Raises SourceError MALFORMED.

    Those that cannot be read are left out: they are reported where all objects are read.
    """
    for kind, about, item in items_of(content, object_name):
        if kind == PODS.name and about.api_version in ("", *_VERSIONS[kind]):
            try:
                yield from (pod for pod in PODS.kept(item, object_name, Keep.ALL) if pod.node)
            except SourceError:
                continue


def decode_dump(
    content: bytes | DumpItems,
    object_name: str = "dump",
    *,
    keep: Keep = Keep.SHARING,
    scheduling: bool = False,
    node_labels: bool = False,
    also: Collection[ApiKind[Any]] = (),
    config_maps: Collection[tuple[str, str]] = (),
) -> Dump:
    """The objects in the output of ``kubectl get nodes,pods -A -o json`` and similar commands.

    The output is a ``List`` of mixed kinds, a list of one kind, or one object, as JSON or YAML; or
    several of these, one after another or in a ``List``. Raises SourceError
    MALFORMED for anything else, such as the Status of a refusal, which it quotes. ``scheduling`` is
    whether to read what kube-scheduler reads of nodes and pods, too, and ``node_labels`` whether
    that of nodes alone; ``also`` are further kinds to read, and ``config_maps`` further ConfigMaps,
    by namespace and name.
    """
    nodes: list[Node] = []
    pods: list[Pod] = []
    share_pods: list[Pod] = []
    namespaces: list[Namespace] = []
    resource_quotas: list[ResourceQuota] = []
    resource_claims: list[ResourceClaim] = []
    resource_slices: list[ResourceSlice] = []
    budgets: list[DisruptionBudget] = []
    gpu_quota = None
    lists: dict[str, tuple[ApiKind[Any], list[Any]]] = {
        NODES.name: (NODES, nodes),
        PODS.name: (PODS, pods),
        SHARE_PODS.name: (SHARE_PODS, share_pods),
        NAMESPACES.name: (NAMESPACES, namespaces),
        RESOURCE_QUOTAS.name: (RESOURCE_QUOTAS, resource_quotas),
        RESOURCE_CLAIMS.name: (RESOURCE_CLAIMS, resource_claims),
        RESOURCE_SLICES.name: (RESOURCE_SLICES, resource_slices),
        BUDGETS.name: (BUDGETS, budgets),
    }
    by_key: dict[str, tuple[ApiKind[Any], list[Any]]] = {kind.key: (kind, []) for kind in also}
    # An object without a version is of the first kind of its name.
    lists = {kind.name: by_key[kind.key] for kind in reversed([*also])} | lists
    versions = _versions(also)
    named: dict[tuple[str, str], Mapping[str, str]] = {}
    shared_gpu: dict[tuple[str, str], Mapping[str, str]] = {}
    scheduling_nodes: list[SchedulingNode] = []
    placed: list[PlacedPod] = []
    if scheduling or node_labels:
        lists[NODES.name] = SCHEDULING_NODES, scheduling_nodes
    if scheduling:
        lists[PODS.name] = scheduling_pods(keep), placed
    unhealthy: dict[str, str] = {}
    pods_by_namespace: Counter[str] = Counter()
    others: Counter[str] = Counter()
    bad: list[MalformedObject] = []
    for kind, about, item in items_of(content, object_name):
        if about.api_version and about.api_version not in versions.get(kind, ()):
            others[kind] += 1
            continue
        try:
            if kind in lists:
                pods_by_namespace[about.metadata.namespace] += kind == PODS.name
                api_kind, kept = by_key.get(_key_of(kind, about), lists[kind])
                kept += api_kind.kept(item, object_name, keep)
            elif kind == CONFIG_MAPS.name and about.metadata.name.startswith(_UNHEALTHY):
                ((data, _),) = CONFIG_MAPS.kept(item, object_name, keep)
                unhealthy[about.metadata.name.removeprefix(_UNHEALTHY)] = data.get("gpus", "")
            elif kind == CONFIG_MAPS.name and _is_gpu_quota(about):
                ((gpu_quota, _),) = CONFIG_MAPS.kept(item, object_name, keep)
            elif kind == CONFIG_MAPS.name and is_shared_gpu(about.metadata.name):
                ((shared_gpu[_name_of(about)], _),) = CONFIG_MAPS.kept(item, object_name, keep)
            elif kind == CONFIG_MAPS.name and _name_of(about) in config_maps:
                ((named[_name_of(about)], _),) = CONFIG_MAPS.kept(item, object_name, keep)
            else:
                others[kind] += 1
        except SourceError as error:
            bad.append(unread(kind, item, error))
    nodes += (each.node for each in scheduling_nodes)
    pods += (each.pod for each in placed if each.pod is not None)
    has_groups = any(map(groups_of, pods))
    return Dump(
        tuple(nodes),
        tuple(pods),
        tuple(share_pods),
        unhealthy,
        pods_by_namespace.total(),
        others,
        tuple(bad),
        tuple(namespaces),
        tuple(resource_quotas),
        gpu_quota,
        tuple(resource_claims),
        tuple(resource_slices),
        tuple(budgets),
        SchedulingObjects(tuple(scheduling_nodes), tuple(placed)),
        {key: tuple(objects) for key, (_, objects) in by_key.items()},
        named,
        shared_gpu,
        frozenset(name for name, number in pods_by_namespace.items() if number),
        has_groups and not is_cut(content, object_name),
    )


def _key_of(kind: str, about: wire.AnyObject) -> str:
    """The key of an object's kind (``ApiKind.key``)."""
    return f"{kind}.{about.api_version.rpartition('/')[0]}"


def _versions(also: Iterable[ApiKind[Any]]) -> dict[str, tuple[str, ...]]:
    """The API versions of each kind that is read, by its name."""
    versions = {**_VERSIONS}
    for kind in also:
        versions[kind.name] = (*versions.get(kind.name, ()), kind.api_version, *kind.older)
    return versions


def _is_gpu_quota(about: wire.AnyObject) -> bool:
    return _name_of(about) == (GPU_QUOTA_NAMESPACE, GPU_QUOTA)


def _name_of(about: wire.AnyObject) -> tuple[str, str]:
    return about.metadata.namespace, about.metadata.name
