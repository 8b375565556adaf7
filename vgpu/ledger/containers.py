"""The statements sorted out: by pod, then by container, with the most trusted first."""

from collections.abc import Iterable, Sequence

from vgpu.ledger.statements import LIMITS, PARTIAL, RANK, Statement
from vgpu.model import Phase, Source

Containers = dict[str, tuple[Statement, ...]]
"""Of one pod: container -> statements, the most trusted first, each once."""


def by_pod(statements: Iterable[Statement]) -> dict[str, Containers]:
    """Pod UID -> what is said of its containers, the most trusted first, each once.

    What is released is left out, and what is said of no pod, unless it is a process.
    """
    said: dict[str, dict[str, list[Statement]]] = {}
    for statement in sorted(statements, key=_rank):
        of_any = statement.pod.uid or statement.source is Source.PROCESS
        if of_any and statement.phase is not Phase.RELEASED:
            containers = said.setdefault(statement.pod.uid, {})
            containers.setdefault(statement.container, []).append(statement)
    return {
        uid: _gathered({name: _each_once(those) for name, those in containers.items()})
        for uid, containers in said.items()
    }


def _rank(statement: Statement) -> int:
    return RANK[statement.source]


def _each_once(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """What is ordered by rank, without repetitions, in one order where a source has more."""
    if len({statement.source for statement in statements}) < len(statements):
        statements = sorted(sorted(dict.fromkeys(statements), key=repr), key=_rank)
    return tuple(statements)


def _gathered(containers: Containers) -> Containers:
    """With what is said of the pod as a whole put to the container that it is about.

    KubeShare gives a share to a whole pod, where kernel and region speak of its containers: then
    those without a share of their own belong to the pod's. And its limit file speaks of the whole
    pod, where the claim may speak of the only container.
    """
    if "" not in containers:
        return containers
    whole = containers[""]
    named = {name: said for name, said in containers.items() if name}
    partial = {name for name, said in named.items() if all(s.source in PARTIAL for s in said)}
    if any(statement.source not in PARTIAL for statement in whole):
        together = [*whole, *(s for name in sorted(partial) for s in named.pop(name))]
        return named | {"": _each_once(sorted(together, key=_rank))}
    limits = [statement for statement in whole if statement.source in LIMITS]
    if limits and len(named) - len(partial) == 1:
        (name,) = named.keys() - partial
        named[name] = _each_once(sorted((*named[name], *limits), key=_rank))
        whole = tuple(statement for statement in whole if statement.source not in LIMITS)
    return named | {"": whole} if whole else named
