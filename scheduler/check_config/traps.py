"""Traps in a KubeSchedulerConfiguration that names our extender; pure.

Some make kube-scheduler refuse the file: it decodes strictly and validates the extenders. It starts
with the others. Plugins and their arguments are left to kube-scheduler.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from scheduler.check_config.kube_scheduler_config import (
    ExtenderConfig,
    KubeSchedulerConfig,
    read_config,
    seconds_of,
    unknown_fields,
)
from vgpu.kube.quantities import is_extended_resource
from vgpu.model.reasons import Explained
from vgpu.placement.dialects import DialectRow, dialect_rows
from vgpu.schemes.vendors import is_of_other_vendor

LEAST_TIMEOUT: Final = 2.0
"""Minimum ``httpTimeout`` that leaves room for a slow write to the API server, in seconds."""


class ConfigTrap(Explained):
    """What is wrong with a configuration."""

    UNKNOWN_FIELD = "unknown_field", "kube-scheduler refuses a field that its version does not know"
    PERCENTAGE = "percentage", "kube-scheduler refuses a percentage that is not from 0 to 100"
    NO_EXTENDER = "no_extender", "no extender manages a resource of a sharing system"
    NO_KNOWN_RESOURCE = (
        "no_known_resource",
        (
            "none of these is a known resource of a sharing system: if they are its resources under"
            " other names, --hami.resource and the like name them (HAMi's and Volcano's scheduler"
            " have the names in a ConfigMap, in device-config.yaml)"
        ),
    )
    NO_BIND_VERB = (
        "no_bind_verb",
        "without bindVerb kube-scheduler binds the pods itself, and they get no GPU",
    )
    NO_FILTER_VERB = (
        "no_filter_verb",
        "without filterVerb pods are sent to nodes without room, and fail at bind",
    )
    SECOND_BINDER = "second_binder", "kube-scheduler refuses a second extender with bindVerb"
    NO_WEIGHT = "no_weight", "kube-scheduler refuses prioritizeVerb without a weight of at least 1"
    NO_DURATION = (
        "no_duration",
        "kube-scheduler refuses a duration that is not like 5s, 500ms or 1m30s",
    )
    RESOURCE_TWICE = (
        "resource_twice",
        "kube-scheduler refuses a resource that is in the extenders twice",
    )
    NO_EXTENDED_RESOURCE = (
        "no_extended_resource",
        "kube-scheduler refuses a name that is not one of an extended resource (example.com/gpu)",
    )
    INSECURE_WITH_CA = "insecure_with_ca", "kube-scheduler refuses insecure: true beside a CA"
    NO_PREEMPT_VERB = (
        "no_preempt_verb",
        "without preemptVerb kube-scheduler may end pods without freeing a GPU",
    )
    NO_PRIORITIZE_VERB = (
        "no_prioritize_verb",
        "without prioritizeVerb --node-policy counts only if the extender has --best-node-only",
    )
    IGNORABLE = (
        "ignorable",
        "while the extender is away, kube-scheduler binds the pods itself, and they get no GPU",
    )
    ALL_PODS = "all_pods", "without managedResources every pod of the cluster is sent"
    PARTLY_MANAGED = (
        "partly_managed",
        "pods that request only this resource are bound without the extender, and get no GPU",
    )
    IGNORED = (
        "ignored",
        "kube-scheduler offers nodes without GPUs, unless percentageOfNodesToScore is 100",
    )
    SOME_NODES = (
        "some_nodes",
        "in a cluster of more than 100 nodes a pod can wait although a GPU of another node is free",
    )
    NEVER_ADVERTISED = (
        "never_advertised",
        "no node has this resource: without ignoredByScheduler true no pod that requests it fits",
    )
    WHOLE_NODES = (
        "whole_nodes",
        "with nodeCacheCapable false kube-scheduler scores every node as if it were empty",
    )
    SHORT_TIMEOUT = (
        "short_timeout",
        "the answer to a bind can come later; kube-scheduler then reports a failure of a bound pod",
    )
    UNVERIFIED = (
        "unverified",
        "the certificate of the extender is not verified: set a CA in tlsConfig, and not insecure",
    )
    REPLACED_IGNORED = (
        "replaced_ignored",
        "ignoredResources of NodeResourcesFit is replaced by the resources with ignoredByScheduler",
    )


class ConfigFinding(msgspec.Struct, frozen=True):
    """A trap, and the field where it is.

    ``is_error`` if pods would be bound without a GPU, or if kube-scheduler refuses the extenders.
    """

    trap: ConfigTrap
    field: str
    is_error: bool = False


def config_findings(document: object, path: str) -> list[ConfigFinding]:
    """What is wrong with the configuration in a parsed file: first what kube-scheduler refuses.

    Raises SourceError MALFORMED, which names the field.
    """
    config = read_config(document, path)
    refused = list(_refused(config, document if isinstance(document, Mapping) else {}))
    return [*refused, *_accepted(config)]


def unserved_resources(document: object, path: str) -> tuple[str, ...]:
    """The resources that kube-scheduler asks our extender about, and that we do not serve.

    HAMi's part of the configuration has those of other vendors. Raises SourceError MALFORMED.
    """
    served = {name for row in dialect_rows() for name in row.managed}
    names = (
        resource.name
        for extender in read_config(document, path).extenders or ()
        for resource in extender.managed_resources or ()
        if _rows(extender) and is_extended_resource(resource.name)
    )
    return tuple(dict.fromkeys(name for name in names if name not in served))


def _refused(config: KubeSchedulerConfig, document: Mapping[str, Any]) -> Iterator[ConfigFinding]:
    """What makes kube-scheduler refuse the file."""
    for field in unknown_fields(document):
        # A later version can have a new field elsewhere; those of extenders have not changed.
        is_error = field.startswith("extenders[")
        yield ConfigFinding(ConfigTrap.UNKNOWN_FIELD, field, is_error=is_error)
    for field, percentage in _percentages(config):
        if not 0 <= percentage <= 100:
            yield ConfigFinding(ConfigTrap.PERCENTAGE, field, is_error=True)
    has_binder = False
    names: set[str] = set()
    for number, extender in enumerate(config.extenders or ()):
        for trap, field in _refused_of(extender, names):
            yield ConfigFinding(trap, f"extenders[{number}].{field}", is_error=True)
        if extender.bind_verb and has_binder:
            field = f"extenders[{number}].bindVerb"
            yield ConfigFinding(ConfigTrap.SECOND_BINDER, field, is_error=True)
        has_binder |= bool(extender.bind_verb)


def _refused_of(extender: ExtenderConfig, names: set[str]) -> Iterator[tuple[ConfigTrap, str]]:
    """``names`` are the resources of the extenders before it, to which its own are added."""
    if extender.prioritize_verb and extender.weight <= 0:
        yield ConfigTrap.NO_WEIGHT, "weight"
    if seconds_of(extender.http_timeout) is None:
        yield ConfigTrap.NO_DURATION, "httpTimeout"
    tls = extender.tls_config
    if tls is not None and tls.insecure and tls.has_ca:
        yield ConfigTrap.INSECURE_WITH_CA, "tlsConfig.insecure"
    for number, resource in enumerate(extender.managed_resources or ()):
        field = f"managedResources[{number}].name"
        if not is_extended_resource(resource.name):
            yield ConfigTrap.NO_EXTENDED_RESOURCE, field
        elif resource.name in names:
            yield ConfigTrap.RESOURCE_TWICE, field
        names.add(resource.name)


def _accepted(config: KubeSchedulerConfig) -> Iterator[ConfigFinding]:
    """What is wrong although kube-scheduler starts, in the order of the fields."""
    extenders = enumerate(config.extenders or ())
    ours = [(number, extender) for number, extender in extenders if _rows(extender)]
    if not ours:
        yield from _no_extender(config)
        return
    if not _scores_all(config):
        yield ConfigFinding(ConfigTrap.SOME_NODES, "percentageOfNodesToScore")
    for number, extender in ours:
        yield from _of_extender(config, extender, f"extenders[{number}]")


def _no_extender(config: KubeSchedulerConfig) -> Iterator[ConfigFinding]:
    """The finding of a file without an extender of ours: its resources may have other names."""
    is_open = False
    for number, extender in enumerate(config.extenders or ()):
        names = [
            name
            for name in extender.managed
            if is_extended_resource(name) and not is_of_other_vendor(name)
        ]
        if names:
            is_open = True
            field = f"extenders[{number}].managedResources: {', '.join(names)}"
            yield ConfigFinding(ConfigTrap.NO_KNOWN_RESOURCE, field, is_error=True)
    if not is_open:
        yield ConfigFinding(ConfigTrap.NO_EXTENDER, "extenders", is_error=True)


def _rows(extender: ExtenderConfig) -> Sequence[DialectRow]:
    """The sharing systems of which it manages a resource; all where it gets all pods."""
    if not extender.managed_resources:
        return dialect_rows()
    managed = extender.managed.keys()
    return [row for row in dialect_rows() if not managed.isdisjoint(row.resources)]


def _of_extender(
    config: KubeSchedulerConfig, extender: ExtenderConfig, field: str
) -> Iterator[ConfigFinding]:
    if not extender.filter_verb:
        yield ConfigFinding(ConfigTrap.NO_FILTER_VERB, f"{field}.filterVerb")
    if not extender.bind_verb:
        yield ConfigFinding(ConfigTrap.NO_BIND_VERB, f"{field}.bindVerb", is_error=True)
    if not extender.preempt_verb:
        yield ConfigFinding(ConfigTrap.NO_PREEMPT_VERB, f"{field}.preemptVerb")
    if not extender.prioritize_verb:
        yield ConfigFinding(ConfigTrap.NO_PRIORITIZE_VERB, f"{field}.prioritizeVerb")
    if extender.ignorable:
        yield ConfigFinding(ConfigTrap.IGNORABLE, f"{field}.ignorable", is_error=True)
    if not extender.node_cache_capable:
        yield ConfigFinding(ConfigTrap.WHOLE_NODES, f"{field}.nodeCacheCapable")
    if 0 < (seconds_of(extender.http_timeout) or 0) < LEAST_TIMEOUT:
        yield ConfigFinding(ConfigTrap.SHORT_TIMEOUT, f"{field}.httpTimeout")
    if extender.is_unverified:
        yield ConfigFinding(ConfigTrap.UNVERIFIED, f"{field}.tlsConfig")
    yield from _of_resources(config, extender, f"{field}.managedResources")


def _of_resources(
    config: KubeSchedulerConfig, extender: ExtenderConfig, field: str
) -> Iterator[ConfigFinding]:
    managed = extender.managed
    if not managed:
        yield ConfigFinding(ConfigTrap.ALL_PODS, field)
    for row in _rows(extender):
        for name, is_unknown_to_nodes in row.managed.items():
            resource = managed.get(name)
            is_ignored = resource is not None and resource.ignored_by_scheduler
            if is_unknown_to_nodes:
                if not is_ignored:
                    yield ConfigFinding(ConfigTrap.NEVER_ADVERTISED, f"{field}: {name}")
            elif managed and resource is None:
                is_error = not _may_be_renamed(name, managed)
                yield ConfigFinding(ConfigTrap.PARTLY_MANAGED, f"{field}: {name}", is_error)
            elif is_ignored and not _scores_all(config):
                yield ConfigFinding(ConfigTrap.IGNORED, f"{field}: {name}")
    ignored = any(resource.ignored_by_scheduler for resource in managed.values())
    for number, profile in enumerate(config.profiles or () if ignored else ()):
        for plugin in profile.plugin_config or ():
            if plugin.name == "NodeResourcesFit" and (plugin.args or {}).get("ignoredResources"):
                place = f"profiles[{number}].pluginConfig: NodeResourcesFit"
                yield ConfigFinding(ConfigTrap.REPLACED_IGNORED, place)


def _may_be_renamed(name: str, managed: Iterable[str]) -> bool:
    """Whether the extender manages an unknown resource of the same domain, such as nvidia.com/vgpu.

    An operator may have renamed the resource (HAMi's ``--resource-name``): the file does not show
    it.
    """
    known = {each for row in dialect_rows() for each in row.managed}
    domain = name.partition("/")[0]
    return any(each.partition("/")[0] == domain for each in managed if each not in known)


def _percentages(config: KubeSchedulerConfig) -> Iterator[tuple[str, int]]:
    """Each percentage of nodes that is set, with its field."""
    name = "percentageOfNodesToScore"
    if config.percentage_of_nodes_to_score is not None:
        yield name, config.percentage_of_nodes_to_score
    for number, profile in enumerate(config.profiles or ()):
        if profile.percentage_of_nodes_to_score is not None:
            yield f"profiles[{number}].{name}", profile.percentage_of_nodes_to_score


def _scores_all(config: KubeSchedulerConfig) -> bool:
    """Whether every profile looks at all nodes."""
    general = config.percentage_of_nodes_to_score
    own = [profile.percentage_of_nodes_to_score for profile in config.profiles or ()]
    return all((general if part is None else part) == 100 for part in own or [None])
