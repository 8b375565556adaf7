"""The statements by pod, then by container, the most trusted first."""

from collections.abc import Iterable, Sequence

from vgpu.ledger.statements import LIMITS, PARTIAL, RANK, Statement
from vgpu.model.names import Phase, Source

Containers = dict[str, tuple[Statement, ...]]
"""One pod's statements: container -> statements, the most trusted first, each once."""


def by_pod(statements: Iterable[Statement]) -> dict[str, Containers]:
    """Pod UID -> the statements about its containers, the most trusted first, each once.

    Released statements are left out, and statements about no pod unless they are of processes.
    """
    pods: dict[str, dict[str, list[Statement]]] = {}
    for statement in sorted(statements, key=_rank):
        of_any = statement.pod.uid or statement.source is Source.PROCESS
        if of_any and statement.phase is not Phase.RELEASED:
            containers = pods.setdefault(statement.pod.uid, {})
            containers.setdefault(statement.container, []).append(statement)
    return {
        uid: _gathered({name: _each_once(those) for name, those in containers.items()})
        for uid, containers in pods.items()
    }


def _rank(statement: Statement) -> int:
    return RANK[statement.source]


def _each_once(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Statements by rank, without repetitions, in a fixed order where a source has several."""
    if len({statement.source for statement in statements}) < len(statements):
        statements = sorted(sorted(dict.fromkeys(statements), key=repr), key=_rank)
    return tuple(statements)


def _gathered(containers: Containers) -> Containers:
    """The statements, with those about the whole pod moved to the container that they are about.

    KubeShare allocates a share to a whole pod, while kernel and region report its containers:
    containers without a share of their own join the pod's. Its limit file is about the whole pod,
    while the claim may be about the only container.
    """
    if "" not in containers:
        return containers
    whole = containers[""]
    named = {name: own for name, own in containers.items() if name}
    partial = {name for name, own in named.items() if all(s.source in PARTIAL for s in own)}
    if any(statement.source not in PARTIAL for statement in whole):
        together = [*whole, *(s for name in sorted(partial) for s in named.pop(name))]
        return named | {"": _each_once(sorted(together, key=_rank))}
    limits = [statement for statement in whole if statement.source in LIMITS]
    if limits and len(named) - len(partial) == 1:
        (name,) = named.keys() - partial
        named[name] = _each_once(sorted((*named[name], *limits), key=_rank))
        whole = tuple(statement for statement in whole if statement.source not in LIMITS)
    return named | {"": whole} if whole else named
