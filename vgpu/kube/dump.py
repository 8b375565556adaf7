"""The output of ``kubectl get nodes,pods,sharepods,configmaps -A -o json``; pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vgpu.kube.api_kind import ANY_LIST, ANY_OBJECT, unread
from vgpu.kube.decode import Content, decode
from vgpu.kube.documents import Keep
from vgpu.kube.kinds import API_VERSIONS, CONFIG_MAPS, NODES, PODS, SHARE_PODS
from vgpu.kube.objects import MalformedObject, Node, Pod
from vgpu.reasons import Reason, SourceError

_UNHEALTHY: Final = "unhealthy-gpu-"
"""Prefix of the names of gpushare's ConfigMaps; the node's name follows."""


class Dump(msgspec.Struct, frozen=True):
    """What ``kubectl get … -o json`` printed.

    Attributes:
        nodes, pods: those of the API server's lists.
        share_pods: KubeShare's SharePods.
        unhealthy: the text of gpushare's ``unhealthy-gpu-<node>`` ConfigMaps, by node.
        total: number of pods in the dump, including those that are not kept.
        others: number of other objects, by kind.
        malformed: the unreadable objects of all these kinds.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    unhealthy: Mapping[str, str] = {}
    total: int = 0
    others: Mapping[str, int] = {}
    malformed: tuple[MalformedObject, ...] = ()


def decode_dump(content: bytes, object_name: str = "dump", *, keep: Keep = Keep.SHARING) -> Dump:
    """The objects in the output of ``kubectl get nodes,pods -A -o json`` and similar commands.

    The output is a ``List`` of mixed kinds, a list of one kind, or one object. Raises SourceError
    MALFORMED for anything else.
    """
    decoded = decode(content, ANY_LIST, object_name)
    if not decoded.kind:
        raise SourceError(Reason.MALFORMED, object_name, "not a Kubernetes object: it has no kind")
    items: Iterable[Content] = (content,) if decoded.items is None else decoded.items
    kind_of_all = decoded.kind.removesuffix("List")  # for items without a kind
    nodes: list[Node] = []
    pods: list[Pod] = []
    share_pods: list[Pod] = []
    unhealthy: dict[str, str] = {}
    total = 0
    others: Counter[str] = Counter()
    bad: list[MalformedObject] = []
    for item in items:
        about = decode(item, ANY_OBJECT, object_name)
        kind = about.kind or kind_of_all
        if about.api_version not in ("", API_VERSIONS.get(kind)):
            others[kind] += 1
            continue
        try:
            match kind:
                case PODS.name:
                    total += 1
                    pods += PODS.kept(item, object_name, keep)
                case NODES.name:
                    nodes += NODES.kept(item, object_name, keep)
                case SHARE_PODS.name:
                    share_pods += SHARE_PODS.kept(item, object_name, keep)
                case CONFIG_MAPS.name if about.metadata.name.startswith(_UNHEALTHY):
                    ((data, _),) = CONFIG_MAPS.kept(item, object_name, keep)
                    unhealthy[about.metadata.name.removeprefix(_UNHEALTHY)] = data.get("gpus", "")
                case _:
                    others[kind] += 1
        except SourceError as error:
            bad.append(unread(kind, item, error))
    kept = tuple(nodes), tuple(pods), tuple(share_pods)
    return Dump(*kept, unhealthy, total, others, tuple(bad))
