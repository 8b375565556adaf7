"""Traps in a KubeSchedulerConfiguration that names our extender; pure.

The format is ``kubescheduler.config.k8s.io/v1``, of which only the fields of extenders and node
scoring are read. kube-scheduler refuses what its own validation finds; here is what it accepts.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from vgpu.durations import parse_duration
from vgpu.placement.dialects import ROWS, DialectRow
from vgpu.reasons import Explained, Reason, SourceError

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
KIND: Final = "KubeSchedulerConfiguration"

LEAST_TIMEOUT: Final = 2.0
"""Minimum ``httpTimeout`` that leaves room for a slow write to the API server, in seconds."""


class ConfigTrap(Explained):
    """What is wrong with a configuration."""

    NO_EXTENDER = "no_extender", "no extender manages a resource of a sharing system"
    NO_BIND_VERB = (
        "no_bind_verb",
        "without bindVerb kube-scheduler binds the pods itself, and they get no GPU",
    )
    NO_FILTER_VERB = (
        "no_filter_verb",
        "without filterVerb pods are sent to nodes without room, and fail at bind",
    )
    SECOND_BINDER = "second_binder", "kube-scheduler refuses a second extender with bindVerb"
    NO_PREEMPT_VERB = (
        "no_preempt_verb",
        "without preemptVerb kube-scheduler may end pods without freeing a GPU",
    )
    IGNORABLE = (
        "ignorable",
        "while the extender is away, kube-scheduler binds the pods itself, and they get no GPU",
    )
    ALL_PODS = "all_pods", "without managedResources every pod of the cluster is sent"
    PARTLY_MANAGED = (
        "partly_managed",
        "pods that request only this resource are bound without the extender",
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
        "without a CA (tlsConfig) the certificate of the extender is not verified",
    )
    REPLACED_IGNORED = (
        "replaced_ignored",
        "ignoredResources of NodeResourcesFit is replaced by the resources with ignoredByScheduler",
    )


class ConfigFinding(msgspec.Struct, frozen=True):
    """A trap, and the field where it is; ``is_error`` if pods would be bound without a GPU."""

    trap: ConfigTrap
    field: str
    is_error: bool = False


class ManagedResource(msgspec.Struct, frozen=True, rename="camel"):
    """A resource that makes a pod an extender's."""

    name: str = ""
    ignored_by_scheduler: bool = False


class ExtenderTls(msgspec.Struct, frozen=True, rename="camel"):
    """How kube-scheduler verifies an extender."""

    ca_file: str = ""
    ca_data: str = ""
    insecure: bool = False


class ExtenderConfig(msgspec.Struct, frozen=True, rename="camel"):
    """One extender of a configuration."""

    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    node_cache_capable: bool = False
    ignorable: bool = False
    http_timeout: str | int = 0
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: ExtenderTls | None = None
    managed_resources: list[ManagedResource] | None = None

    @property
    def managed(self) -> dict[str, ManagedResource]:
        """The managed resources by name."""
        return {resource.name: resource for resource in self.managed_resources or ()}


class PluginConfig(msgspec.Struct, frozen=True):
    """The arguments of a plugin."""

    name: str = ""
    args: dict[str, Any] | None = None


class SchedulerProfile(msgspec.Struct, frozen=True, rename="camel"):
    """A profile, as far as it is read."""

    percentage_of_nodes_to_score: int | None = None
    plugin_config: list[PluginConfig] | None = None


class KubeSchedulerConfig(msgspec.Struct, frozen=True, rename="camel"):
    """A configuration, as far as it is read."""

    api_version: str = ""
    kind: str = ""
    percentage_of_nodes_to_score: int | None = None
    profiles: list[SchedulerProfile] | None = None
    extenders: list[ExtenderConfig] | None = None


def read_config(document: object, path: str) -> KubeSchedulerConfig:
    """The configuration in a parsed file. Raises SourceError MALFORMED, which names the field."""
    try:
        config = msgspec.convert(document, KubeSchedulerConfig)
    except msgspec.ValidationError as error:
        raise SourceError(Reason.MALFORMED, path, str(error)) from error
    if (config.api_version, config.kind) != (API_VERSION, KIND):
        detail = f"{config.api_version} {config.kind} in place of {API_VERSION} {KIND}"
        raise SourceError(Reason.MALFORMED, path, detail)
    return config


def config_findings(config: KubeSchedulerConfig) -> list[ConfigFinding]:
    """What is wrong with the configuration, in the order of its fields."""
    extenders = list(enumerate(config.extenders or ()))
    ours = [(number, extender) for number, extender in extenders if _rows(extender)]
    if not ours:
        return [ConfigFinding(ConfigTrap.NO_EXTENDER, "extenders", is_error=True)]
    findings = []
    if not _scores_all(config):
        findings.append(ConfigFinding(ConfigTrap.SOME_NODES, "percentageOfNodesToScore"))
    binders = [number for number, extender in extenders if extender.bind_verb]
    for number in binders[1:]:
        field = f"extenders[{number}].bindVerb"
        findings.append(ConfigFinding(ConfigTrap.SECOND_BINDER, field, is_error=True))
    for number, extender in ours:
        findings += _of_extender(config, extender, f"extenders[{number}]")
    return findings


def _rows(extender: ExtenderConfig) -> Sequence[DialectRow]:
    """The sharing systems of which it manages a resource; all where it gets all pods."""
    if not extender.managed_resources:
        return ROWS
    return [row for row in ROWS if not extender.managed.keys().isdisjoint(row.resources)]


def _of_extender(
    config: KubeSchedulerConfig, extender: ExtenderConfig, field: str
) -> Iterator[ConfigFinding]:
    if not extender.filter_verb:
        yield ConfigFinding(ConfigTrap.NO_FILTER_VERB, f"{field}.filterVerb")
    if not extender.bind_verb:
        yield ConfigFinding(ConfigTrap.NO_BIND_VERB, f"{field}.bindVerb", is_error=True)
    if not extender.preempt_verb:
        yield ConfigFinding(ConfigTrap.NO_PREEMPT_VERB, f"{field}.preemptVerb")
    if extender.ignorable:
        yield ConfigFinding(ConfigTrap.IGNORABLE, f"{field}.ignorable", is_error=True)
    if not extender.node_cache_capable:
        yield ConfigFinding(ConfigTrap.WHOLE_NODES, f"{field}.nodeCacheCapable")
    if 0 < _seconds(extender.http_timeout) < LEAST_TIMEOUT:
        yield ConfigFinding(ConfigTrap.SHORT_TIMEOUT, f"{field}.httpTimeout")
    tls = extender.tls_config or ExtenderTls()
    is_https = extender.enable_https or extender.url_prefix.startswith("https:")
    if is_https and (tls.insecure or not (tls.ca_file or tls.ca_data)):
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
                yield ConfigFinding(ConfigTrap.PARTLY_MANAGED, f"{field}: {name}")
            elif is_ignored and not _scores_all(config):
                yield ConfigFinding(ConfigTrap.IGNORED, f"{field}: {name}")
    ignored = any(resource.ignored_by_scheduler for resource in managed.values())
    for number, profile in enumerate(config.profiles or () if ignored else ()):
        for plugin in profile.plugin_config or ():
            if plugin.name == "NodeResourcesFit" and (plugin.args or {}).get("ignoredResources"):
                place = f"profiles[{number}].pluginConfig: NodeResourcesFit"
                yield ConfigFinding(ConfigTrap.REPLACED_IGNORED, place)


def _scores_all(config: KubeSchedulerConfig) -> bool:
    """Whether every profile looks at all nodes."""
    general = config.percentage_of_nodes_to_score
    own = [profile.percentage_of_nodes_to_score for profile in config.profiles or ()]
    return all((general if part is None else part) == 100 for part in own or [None])


def _seconds(text: str | int) -> float:
    """A duration; 0 is kube-scheduler's default, as is one that cannot be read."""
    try:
        return parse_duration(str(text))
    except ValueError:
        return 0.0
