"""The JSON of kube-scheduler's extenders, as structs of the fields that we read; pure.

The types of ``k8s.io/kube-scheduler/extender/v1`` have no JSON tags, so the keys are Go's names,
and unset values are null. Pods and nodes inside are ordinary objects of the API.

The names of the offered nodes are decoded only if one of them is needed. A pod that fits on no node
of a large cluster is rejected again and again. For that the number of the names suffices, and one
text for all of them: both are found in the JSON as it was sent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Self, overload

import msgspec

from scheduler.filter.refusals import NodeTexts
from vgpu.kube import wire
from vgpu.kube.decode import decode, decode_at_once
from vgpu.kube.pod_projection import project_pod
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason, SourceError

OBJECT_NAME: Final = "extender request"
"""The source that errors name."""

MOST_NODES: Final = 100_000
"""Maximum number of nodes in a request; Kubernetes is tested with 5,000."""

_ENCODER: Final = msgspec.json.Encoder()

_LISTED: Final = msgspec.json.Decoder(tuple[str, ...])

_NOT_PLAIN: Final = (b" ", b"\t", b"\n", b"\r", b"\\")
"""What may be in a list of names in JSON, and is in none that kube-scheduler sends."""


class ListedNames(Sequence[str]):
    """The names in the order in which they were sent, at least one."""

    def __init__(self, inner: bytes, count: int) -> None:
        """``inner`` is the list without its brackets; :meth:`of` has made sure of its form."""
        self._inner = inner
        self._count = count
        self._names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, listed: bytes) -> Self | None:
        """From a list in JSON; None if it has not the form that kube-scheduler's lists have.

        In that form each comma is between two names, and no name has a comma, so that for n names

            quotes = 2 n    and    commas = n - 1

        Without a backslash, quotes only delimit names. The number of them is needed beside the
        commas: the only name of ``[","]`` looks like what is between two names.
        """
        inner, commas = listed[1:-1], listed.count(b",")
        is_plain = (
            listed.isascii()  # so that all of it can be decoded
            and listed.startswith(b'["')
            and listed.endswith(b'"]')
            and inner.count(b'","') == commas
            and listed.count(b'"') == 2 * (commas + 1)
            and not any(each in inner for each in _NOT_PLAIN)
        )
        return cls(inner, commas + 1) if is_plain else None

    def each(self, text: str) -> msgspec.Raw:
        """An object in JSON that has the text for each name.

        That takes a third of the time in which a mapping is made and encoded.
        """
        value = b":" + _ENCODER.encode(text)
        return msgspec.Raw(b"{" + self._inner.replace(b",", value + b",") + value + b"}")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self._decoded()[index]

    def _decoded(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = _LISTED.decode(b"[" + self._inner + b"]")
        return self._names


class ExtenderNodes(msgspec.Struct, frozen=True):
    """A list of nodes, each as it was sent."""

    items: list[msgspec.Raw] | None = None


class VersionMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata that identify one version of an object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class PodVersion(msgspec.Struct, frozen=True):
    """Which version of which pod was sent."""

    metadata: VersionMeta


class ExtenderArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """The body of filter and prioritize: nodes by name, or whole ones (nodeCacheCapable false)."""

    pod: PodVersion | None = None
    nodes: ExtenderNodes | None = None
    node_names: msgspec.Raw = msgspec.Raw()


class ExtenderPod(msgspec.Struct, frozen=True, rename="pascal"):
    """The whole pod of the same body."""

    pod: wire.PodFields


class VictimMeta(msgspec.Struct, frozen=True):
    """A victim by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True, rename="pascal"):
    """The victims of a node by their UIDs."""

    pods: list[VictimMeta] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class VictimPod(msgspec.Struct, frozen=True):
    """A whole victim, of which only the metadata is read."""

    metadata: wire.PodMeta


class Victims(msgspec.Struct, frozen=True, rename="pascal"):
    """The victims of a node as whole pods (nodeCacheCapable false)."""

    pods: list[VictimPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """The body of preempt."""

    pod: wire.PodFields | None = None
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class NodeVictims(msgspec.Struct, frozen=True):
    """The victims of a node: the UIDs of pods, and how many disruption budgets they violate."""

    uids: tuple[str, ...]
    violations: int = 0


class PreemptionQuery(msgspec.Struct, frozen=True):
    """A request to preempt, decoded: the pod, and kube-scheduler's victims by node."""

    pod: Pod
    victims: Mapping[str, NodeVictims]


class BindingArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """The body of bind."""

    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID")


class HostScore(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """A node's score in the answer to prioritize."""

    host: str
    score: int


class PlacementQuery(msgspec.Struct, frozen=True):
    """A request for nodes, decoded.

    Attributes:
        pod: the pod.
        names: the names of the nodes, in the order in which they were sent.
        sent: whole nodes by name; None where only names were sent.
    """

    pod: Pod
    names: Sequence[str]
    sent: Mapping[str, msgspec.Raw] | None = None

    def each(self, text: str) -> NodeTexts:
        """The text for each node."""
        if isinstance(self.names, ListedNames):
            return self.names.each(text)
        return dict.fromkeys(self.names, text)


class FilterAnswer(msgspec.Struct, frozen=True):
    """The answer to filter: the nodes that take the pod, why others do not, or an error.

    Attributes:
        nodes: nodes that take the pod, in the order of the request.
        failed: node -> why not; other pods that leave may change it.
        unresolvable: node -> why not, whatever other pods do.
        error: why there is no answer; "" if there is one.
    """

    nodes: Sequence[str] = ()
    failed: NodeTexts = {}
    unresolvable: NodeTexts = {}
    error: str = ""


_ARGS: Final = msgspec.json.Decoder(ExtenderArgs)
_NAMES: Final = msgspec.json.Decoder(tuple[str, ...] | None)
_POD: Final = msgspec.json.Decoder(ExtenderPod)
_PREEMPTION: Final = msgspec.json.Decoder(PreemptionArgs)
_BINDING: Final = msgspec.json.Decoder(BindingArgs)
_NODE: Final = msgspec.json.Decoder(wire.AnyObject)

KnownPods = Callable[[str, str], Pod | None]
"""The pod of this namespace and name in its newest known version, None if it is not known."""


def read_query(body: bytes, known: KnownPods) -> PlacementQuery:
    """The body of filter or prioritize. Raises SourceError MALFORMED.

    A pod that is known in the version that was sent is not decoded again.
    """
    args = decode(body, _ARGS, OBJECT_NAME)
    if args.pod is None:
        raise SourceError(Reason.MALFORMED, OBJECT_NAME, "no Pod")
    meta = args.pod.metadata
    pod = known(meta.namespace, meta.name)
    if (
        pod is None
        or not meta.resource_version
        or (pod.ref.uid, pod.resource_version) != (meta.uid, meta.resource_version)
    ):
        pod = project_pod(decode(body, _POD, OBJECT_NAME).pod, OBJECT_NAME)
    listed = bytes(args.node_names)
    names = ListedNames.of(listed) or (
        decode_at_once(listed, _NAMES, OBJECT_NAME) if listed else None
    )
    if names is not None:
        _check_number(len(names))
        return PlacementQuery(pod, names)
    if args.nodes is None:
        raise SourceError(Reason.MALFORMED, OBJECT_NAME, "neither Nodes nor NodeNames")
    items = args.nodes.items or []
    _check_number(len(items))
    sent = {decode(item, _NODE, OBJECT_NAME).metadata.name: item for item in items}
    return PlacementQuery(pod, tuple(sent), sent)


def _check_number(nodes: int) -> None:
    if nodes > MOST_NODES:
        raise SourceError(Reason.MALFORMED, OBJECT_NAME, f"{nodes} nodes: more than {MOST_NODES}")


def read_preemption(body: bytes) -> PreemptionQuery:
    """The body of preempt. Raises SourceError MALFORMED."""
    args = decode(body, _PREEMPTION, OBJECT_NAME)
    if args.pod is None:
        raise SourceError(Reason.MALFORMED, OBJECT_NAME, "no Pod")
    pod = project_pod(args.pod, OBJECT_NAME)
    if args.node_name_to_meta_victims is not None:
        victims = {
            name: NodeVictims(tuple(pod.uid for pod in each.pods or ()), each.num_pdb_violations)
            for name, each in args.node_name_to_meta_victims.items()
        }
    else:
        victims = {
            name: NodeVictims(
                tuple(pod.metadata.uid for pod in each.pods or ()), each.num_pdb_violations
            )
            for name, each in (args.node_name_to_victims or {}).items()
        }
    return PreemptionQuery(pod, victims)


def read_binding(body: bytes) -> BindingArgs:
    """The body of bind. Raises SourceError MALFORMED."""
    return decode(body, _BINDING, OBJECT_NAME)


def write_filter(answer: FilterAnswer, sent: Mapping[str, msgspec.Raw] | None = None) -> bytes:
    """The answer to filter; ``sent`` are the whole nodes of the request, if it had them."""
    names: list[str] | None = list(answer.nodes)
    nodes = None
    if sent is not None:
        names, nodes = None, {"metadata": {}, "items": [sent[name] for name in answer.nodes]}
    return _ENCODER.encode(
        {
            "Nodes": nodes,
            "NodeNames": names,
            "FailedNodes": answer.failed,
            "FailedAndUnresolvableNodes": answer.unresolvable,
            "Error": answer.error,
        }
    )


def write_victims(victims: Mapping[str, NodeVictims]) -> bytes:
    """The answer to preempt; a node that is not named is no candidate."""
    return _ENCODER.encode(
        {
            "NodeNameToMetaVictims": {
                name: {
                    "Pods": [{"UID": uid} for uid in each.uids],
                    "NumPDBViolations": each.violations,
                }
                for name, each in victims.items()
            }
        }
    )


def write_scores(names: Sequence[str] = (), scores: Sequence[int] = ()) -> bytes:
    """The answer to prioritize: each node with the score at the same place."""
    return _ENCODER.encode(list(map(HostScore, names, scores)))


def write_error(error: str) -> bytes:
    """The answer to bind; "" is success."""
    return _ENCODER.encode({"Error": error})
