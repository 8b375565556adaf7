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
"""gpushare's ConfigMaps: this, then the node's name."""


class Dump(msgspec.Struct, frozen=True):
    """What ``kubectl get … -o json`` printed.

    Attributes:
        nodes, pods: as in the lists of the API server.
        share_pods: KubeShare's SharePods.
        unhealthy: the text of gpushare's ``unhealthy-gpu-<node>`` ConfigMaps, by node.
        total: pods in the dump, those that are not kept included.
        others: objects that are none of these, counted by kind.
        malformed: those of all these kinds that cannot be read.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    unhealthy: Mapping[str, str] = {}
    total: int = 0
    others: Mapping[str, int] = {}
    malformed: tuple[MalformedObject, ...] = ()


def decode_dump(content: bytes, subject: str = "dump", *, keep: Keep = Keep.SHARING) -> Dump:
    """Everything in the output of ``kubectl get nodes,pods -A -o json`` and its like.

    A ``List`` of mixed kinds, a list of one kind, or one object. Raises SourceError MALFORMED for
    what is none of these.
    """
    decoded = decode(content, ANY_LIST, subject)
    if not decoded.kind:
        raise SourceError(Reason.MALFORMED, subject, "not a Kubernetes object: it has no kind")
    items: Iterable[Content] = (content,) if decoded.items is None else decoded.items
    kind_of_all = decoded.kind.removesuffix("List")  # where the items have none
    nodes: list[Node] = []
    pods: list[Pod] = []
    share_pods: list[Pod] = []
    unhealthy: dict[str, str] = {}
    total = 0
    others: Counter[str] = Counter()
    bad: list[MalformedObject] = []
    for item in items:
        about = decode(item, ANY_OBJECT, subject)
        kind = about.kind or kind_of_all
        if about.api_version not in ("", API_VERSIONS.get(kind)):
            others[kind] += 1
            continue
        try:
            match kind:
                case PODS.name:
                    total += 1
                    pods += PODS.kept(item, subject, keep)
                case NODES.name:
                    nodes += NODES.kept(item, subject, keep)
                case SHARE_PODS.name:
                    share_pods += SHARE_PODS.kept(item, subject, keep)
                case CONFIG_MAPS.name if about.metadata.name.startswith(_UNHEALTHY):
                    ((data, _),) = CONFIG_MAPS.kept(item, subject, keep)
                    unhealthy[about.metadata.name.removeprefix(_UNHEALTHY)] = data.get("gpus", "")
                case _:
                    others[kind] += 1
        except SourceError as error:
            bad.append(unread(kind, item, error))
    kept = tuple(nodes), tuple(pods), tuple(share_pods)
    return Dump(*kept, unhealthy, total, others, tuple(bad))
