"""A question of `vgpu fit`, and which part of the cluster answers it. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import click
import msgspec
from msgspec import structs

from scheduler.filter.refusals import request_text
from vgpu.inventory.nvidia import SCHEME as NVIDIA
from vgpu.inventory.nvidia import is_on_unknown_gpu, is_own_unit, plugin_refusal
from vgpu.kube.closed_nodes import NO_POD, ClosedReason, with_all_allocatable
from vgpu.kube.quantities import is_extended
from vgpu.kube.scheduling_objects import SchedulingPod, Unchecked, UncheckedPart
from vgpu.model.objects import Pod
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme, demand_of
from vgpu.placement.node_offers import NodeOffers, uncounted
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.quota.limits import cluster_quotas
from vgpu.schemes.other_schedulers import other_scheduler, system_of_resource
from vgpu.schemes.registry import registry
from vgpu.schemes.system_titles import system_title
from vgpucli.fit.answer import answer, exclusions, move
from vgpucli.fit.manifest import AskedPod
from vgpucli.fit.model import Budgets, FitAnswer, FitReason, NodeExclusion
from vgpucli.fit.units import move_units, quota_room, units_answer
from vgpucli.inspect.read import Read
from vgpucli.misread_amounts import misread_amounts
from vgpucli.missing_resources import MissingResource, with_nearest
from vgpucli.prediction import ReadObjects, SchedulingSimulation, filled_cache

_MOST_NAMED: Final = 5
"""Maximum number of pods that are named."""


class FitQuestion(msgspec.Struct, frozen=True):
    """What is asked.

    Attributes:
        asked: the pod, of which more are to fit.
        drained: names of nodes without which it is asked.
        wanted: how many pods are to fit; None asks for all that fit.
        defragments: whether a defragmentation plan is asked for.
    """

    asked: AskedPod
    drained: frozenset[str] = frozenset()
    wanted: int | None = None
    defragments: bool = False


def answered(
    read: Read, schemes: Sequence[SchedulerScheme], question: FitQuestion
) -> tuple[FitAnswer, str]:
    """The answer, and what one pod requests, for people.

    Raises click.ClickException for a pod whose GPUs nothing here counts.
    """
    pod = question.asked.pod
    demanded = demand_of(pod, schemes)
    _require_names(read, question, demanded)
    _require_amounts(demanded)
    is_foreign = registry().foreign(read.objects.nodes)
    by_units = is_foreign(pod) or _only_units(demanded, question)
    simulation, offers = simulated(read, schemes, question.asked.scheduling, question.drained)
    by_shares, others = _split(read.objects.pods, is_foreign)
    moved = (
        *move(simulation, by_shares, question.drained),
        *move_units(offers, others, question.drained, simulation.names),
    )
    if by_units:
        if question.defragments:
            raise click.ClickException(
                "--defragment: the kubelet chooses the GPUs of these pods, so that no eviction"
                " makes room on a GPU"
            )
        fit = _by_units(read, offers, question)
        requested = _units_text(question)
    elif isinstance(demanded, PlacementRefusal):
        own = _by_claims(pod) or _by_others(pod) or demanded.text
        texts = (own, *_misread(pod, schemes))
        raise click.ClickException("; ".join(texts))
    else:
        fit = _by_shares(read, simulation, demanded, question)
        if not fit.pods:
            reasons = filter(None, (fit.rejection, *_misread(pod, schemes)))
            fit = structs.replace(fit, rejection="; ".join(reasons))
        requested = request_text(demanded[1].requests)
    unchecked = (
        *question.asked.scheduling.unchecked,
        *_other_extenders(read, question),
        *_supplied(read, question),
    )
    if not by_units:
        unchecked = (*unchecked, *_on_unknown_gpus(read))
    excluded = exclusions(offers, question.drained) if not fit.excluded else fit.excluded
    return structs.replace(fit, moved=moved, unchecked=unchecked, excluded=excluded), requested


def simulated(
    read: Read,
    schemes: Sequence[SchedulerScheme],
    wanted: SchedulingPod = NO_POD,
    drained: Collection[str] = (),
) -> tuple[SchedulingSimulation, NodeOffers]:
    """The simulation of the cluster, and the nodes that kube-scheduler offers in it."""
    offers = NodeOffers(read.scheduling, wanted, drained)
    simulation = SchedulingSimulation(
        filled_cache(schemes, objects_of(read)), offers.selected_by(wanted), offers
    )
    return simulation, offers


def objects_of(read: Read) -> ReadObjects:
    """What the scheduler would know."""
    objects = read.objects
    return ReadObjects(
        read.as_of,
        map(with_all_allocatable, objects.nodes),
        objects.pods,
        objects.malformed,
        objects.unhealthy,
        read.namespaces,
        read.quotas,
        read.gpu_quota,
    )


# ---------------------------------------------------------------- parts


def _misread(pod: Pod, schemes: Iterable[SchedulerScheme]) -> Iterator[str]:
    """The amounts of the pod that are meant in another unit, each with what to write."""
    units = {scheme.row.name: scheme.unit_bytes for scheme in schemes}
    for text, advice in misread_amounts(pod, units):
        yield f"{text.replace('; ', ', ')}: {advice}"


def _split(pods: Iterable[Pod], is_foreign: Callable[[Pod], bool]) -> tuple[list[Pod], list[Pod]]:
    """The pods that the scheduler places, and those that kube-scheduler alone places."""
    split: tuple[list[Pod], list[Pod]] = [], []
    for pod in pods:
        split[is_foreign(pod)].append(pod)
    return split


def _require_names(
    read: Read,
    question: FitQuestion,
    demanded: tuple[SchedulerScheme, PodDemand] | PlacementRefusal,
) -> None:
    """Raises click.ClickException for a pod that requests amounts by names that are not known."""
    units = _units(question)
    others = [f"{name} of {other}" for name in units if (other := system_of_resource(name))]
    is_refused = isinstance(demanded, PlacementRefusal) and (
        demanded.reason is not PlacementReason.NOTHING_REQUESTED
    )
    if others and not is_refused:
        raise click.ClickException(
            f"{', '.join(others)}: not counted, since vgpu does not read what pods hold of it"
        )
    if system := next(iter(registry().unnamed), ""):
        of_others = frozenset().union(
            *(names for row, names in registry().advertised_by.items() if row != "nvidia")
        )
        if unknown := sorted(units.keys() - of_others):
            raise click.ClickException(
                f"whether {', '.join(unknown)} is of {system_title(system)} is unknown:"
                f" --{system}.resource names its resources (count=NAME)"
            )
    if registry().may_be_renamed(units):
        unknown = sorted(units.keys() - registry().resource_names - _advertised(read))
        if unknown:
            system = registry().partly_named[0]
            raise click.ClickException(
                f"what the pod requests by {', '.join(unknown)} is unknown; --{system}.resource"
                " names the resources"
            )


def _require_amounts(demanded: tuple[SchedulerScheme, PodDemand] | PlacementRefusal) -> None:
    """Raises click.ClickException for memory and cores by names that are not known."""
    if isinstance(demanded, PlacementRefusal):
        return
    scheme, demand = demanded
    if any(request.has_unknown_amounts for request in demand.requests):
        system = scheme.row.name
        raise click.ClickException(
            f"{system_title(system)}: {request_text(demand.requests)}; --{system}.resource names"
            " the resources"
        )


def _only_units(
    demanded: tuple[SchedulerScheme, PodDemand] | PlacementRefusal, question: FitQuestion
) -> bool:
    """Whether the pod requests extended resources, and no shared GPU."""
    return (
        isinstance(demanded, PlacementRefusal)
        and demanded.reason is PlacementReason.NOTHING_REQUESTED
        and bool(_units(question))
    )


def _units(question: FitQuestion) -> dict[str, int]:
    """The extended resources that the pod requests, in units."""
    requests = question.asked.scheduling.requests
    return {name: units for name, units in sorted(requests.items()) if is_extended(name)}


def _units_text(question: FitQuestion) -> str:
    return ", ".join(f"{units} {name}" for name, units in _units(question).items())


def _by_shares(
    read: Read,
    simulation: SchedulingSimulation,
    demanded: tuple[SchedulerScheme, PodDemand],
    question: FitQuestion,
) -> FitAnswer:
    """The answer for pods that share GPUs."""
    scheme = demanded[0]
    missing = _missing(read, question, registry().resource_names | uncounted())
    if missing:
        return _nothing(scheme.row.name, read, missing)
    nodes = read.objects.nodes
    of_system = frozenset(node.name for node in nodes if scheme.row.has_devices(node))
    excluded = exclusions(simulation.offers, question.drained) if simulation.offers else {}
    excluded |= dict(_unhealthy(simulation, demanded, excluded))
    fit = answer(simulation, demanded, question.wanted)
    if not of_system and not fit.pods:
        fit = structs.replace(fit, rejection=f"no node has GPUs of {system_title(scheme.row.name)}")
    fit = structs.replace(fit, excluded=excluded, of_system=of_system)
    if question.wanted is None or not question.defragments:
        return fit
    from vgpucli.fit.defragmentation import defragment  # noqa: PLC0415  # slow to import

    budgets = Budgets.of(read.budgets, read.labels, read.objects.malformed)
    plan = defragment(simulation, demanded, question.wanted, read.objects.pods, budgets)
    return structs.replace(fit, plan=plan)


def _unhealthy(
    simulation: SchedulingSimulation,
    demanded: tuple[SchedulerScheme, PodDemand],
    excluded: Mapping[str, NodeExclusion],
) -> Iterator[tuple[str, NodeExclusion]]:
    """The nodes of which nothing is allocatable since all of their GPUs are declared unhealthy."""
    gone = {name for name, why in excluded.items() if why.code == ClosedReason.NOTHING_ALLOCATABLE}
    reason = PlacementReason.UNHEALTHY
    for name, _, refusal in simulation.cache.explain(*demanded) if gone else ():
        if name in gone and refusal is not None and refusal.cause is reason:
            yield name, NodeExclusion(reason.value, reason.explanation)


def _by_units(read: Read, offers: NodeOffers, question: FitQuestion) -> FitAnswer:
    """The answer for pods that kube-scheduler alone places."""
    units = _units(question)
    system = NVIDIA.value if any(map(is_own_unit, units)) else ""
    missing = _missing(read, question, frozenset())
    if missing:
        return _nothing(system, read, missing)
    namespace = question.asked.pod.ref.namespace
    quotas = cluster_quotas(read.namespaces, read.quotas, read.gpu_quota, (namespace,))
    room = quota_room(quotas.get(namespace), read.objects.pods, units, namespace)
    refused = {
        node.name: NodeExclusion(FitReason.ONE_UNIT.value, FitReason.ONE_UNIT.explanation, why)
        for node in read.objects.nodes
        if (why := plugin_refusal(question.asked.pod, node))
    }
    fit = units_answer(offers, question.wanted, system, room, refused)
    return structs.replace(fit, excluded=refused | exclusions(offers, question.drained))


def _on_unknown_gpus(read: Read) -> Iterator[Unchecked]:
    """Pods of other systems on nodes with GPUs of ours: fewer pods may fit than are counted."""
    nodes = {node.name for node in read.objects.nodes if registry().schemes_of(node)}
    pods = sorted(
        f"{pod.ref.namespace}/{pod.ref.name}"
        for pod in registry().resolved(read.objects.pods)
        if pod.node in nodes and is_on_unknown_gpu(pod)
    )
    if pods:
        more = f" and {len(pods) - _MOST_NAMED} more" if len(pods) > _MOST_NAMED else ""
        detail = f"{', '.join(pods[:_MOST_NAMED])}{more}: fewer pods may fit"
        yield Unchecked(UncheckedPart.ON_UNKNOWN_GPU, detail)


def _missing(
    read: Read, question: FitQuestion, counted: Collection[str]
) -> tuple[MissingResource, ...]:
    """The requested resources that no node advertises, without those that are counted elsewhere.

    Where there are ResourceSlices, kube-scheduler may allocate devices of them for a resource.
    """
    if not read.objects.nodes or read.objects.resource_claims.slices:
        return ()
    advertised = _advertised(read)
    names = _units(question).keys() - advertised - frozenset(counted)
    return with_nearest(names, advertised | registry().resource_names)


def _advertised(read: Read) -> frozenset[str]:
    """The extended resources that some node has."""
    return frozenset(name for node in read.objects.nodes for name in node.advertised)


def _nothing(system: str, read: Read, missing: Sequence[MissingResource]) -> FitAnswer:
    """The answer for pods that request what no node has."""
    text = "; ".join(each.text.replace("; ", ", ") for each in missing)
    refused = {FitReason.MISSING_RESOURCE.value: len(read.objects.nodes)}
    return FitAnswer(system, 0, True, (), text, refused)


def _by_claims(pod: Pod) -> str:
    """That the GPUs of the pod come from ResourceClaims; "" of another pod."""
    if not pod.uses_resource_claims:
        return ""
    return (
        "the GPUs of the pod come from ResourceClaims, which kube-scheduler allocates by itself:"
        " vgpu fit does not count them"
    )


def _by_others(pod: Pod) -> str:
    """That another GPU scheduler places the pod; "" of another pod."""
    recognised = other_scheduler(pod)
    if recognised is None:
        return ""
    return (
        f"the pod is one of {recognised.scheduler}, by {recognised.key}: vgpu fit does not know"
        " where that scheduler places pods"
    )


def _supplied(read: Read, question: FitQuestion) -> Iterator[Unchecked]:
    """Requested resources that no node has, and that a ResourceClaim may supply.

    Which DeviceClass supplies a resource, and which devices are of it, is not read.
    """
    if read.objects.nodes and read.objects.resource_claims.slices:
        units = _units(question).keys() - _advertised(read)
        known = registry().resource_names | uncounted()
        names = {name for name in units if is_own_unit(name) or name not in known}
        if names:
            detail = f"{', '.join(sorted(names))}, which a DRA driver may supply"
            yield Unchecked(UncheckedPart.RESOURCE_CLAIMS, detail)


def _other_extenders(read: Read, question: FitQuestion) -> Iterator[Unchecked]:
    """The advertised resources that are of no known system: an extender may place these."""
    known = registry().resource_names | uncounted()
    advertised = _advertised(read) - known
    names = [each for each in _units(question) if each in advertised and not is_own_unit(each)]
    if names:
        yield Unchecked(UncheckedPart.OTHER_EXTENDERS, ", ".join(names))
