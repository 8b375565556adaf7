"""A KubeSchedulerConfiguration, as far as an extender depends on it. Pure.

The format is ``kubescheduler.config.k8s.io/v1``, the only one since Kubernetes 1.29. kube-scheduler
decodes it strictly. The types of an extender are whole here; of the file and its profiles only the
names of all fields are known.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from vgpu.model.durations import parts_of
from vgpu.model.go_json import decode_go
from vgpu.model.reasons import Reason, SourceError

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
KIND: Final = "KubeSchedulerConfiguration"

FILE_FIELDS: Final = frozenset(
    {
        "apiVersion",
        "kind",
        "parallelism",
        "leaderElection",
        "clientConnection",
        "enableProfiling",
        "enableContentionProfiling",
        "percentageOfNodesToScore",
        "percentageOfPlacementsToScore",
        "podInitialBackoffSeconds",
        "podMaxBackoffSeconds",
        "profiles",
        "extenders",
        "delayCacheUntilActive",
    }
)
"""The fields of the file in Kubernetes 1.29 and later."""

PROFILE_FIELDS: Final = frozenset(
    {
        "schedulerName",
        "percentageOfNodesToScore",
        "percentageOfPlacementsToScore",
        "plugins",
        "pluginConfig",
    }
)
"""The fields of a profile in Kubernetes 1.29 and later."""


class ManagedResource(msgspec.Struct, frozen=True, rename="camel"):
    """A resource that makes a pod an extender's."""

    name: str = ""
    ignored_by_scheduler: bool = False


class ExtenderTls(msgspec.Struct, frozen=True, rename="camel"):
    """How kube-scheduler verifies an extender, and what it shows of itself."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: str = ""
    key_data: str = ""
    ca_data: str = ""

    @property
    def has_ca(self) -> bool:
        """Whether there is a CA to verify the extender with."""
        return bool(self.ca_file or self.ca_data)


class ExtenderConfig(msgspec.Struct, frozen=True, rename="camel"):
    """One extender of a configuration."""

    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: ExtenderTls | None = None
    http_timeout: str = "0"
    node_cache_capable: bool = False
    managed_resources: list[ManagedResource] | None = None
    ignorable: bool = False

    @property
    def managed(self) -> dict[str, ManagedResource]:
        """The managed resources by name."""
        return {resource.name: resource for resource in self.managed_resources or ()}

    @property
    def is_unverified(self) -> bool:
        """Whether any server with any certificate is taken for the extender.

        ``enableHTTPS`` does not choose the protocol. It switches the verification off where there
        is no CA; without it the CAs of the host verify.
        """
        tls = self.tls_config or ExtenderTls()
        is_https = self.url_prefix.startswith("https:")
        return is_https and (tls.insecure or (self.enable_https and not tls.has_ca))


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


_CONFIG: Final = msgspec.json.Decoder(KubeSchedulerConfig)


def read_config(document: object, path: str) -> KubeSchedulerConfig:
    """The configuration in a parsed file. Raises SourceError MALFORMED, which names the field."""
    try:
        text = msgspec.json.encode(document)
        config = _CONFIG.decode(text) if document is None else decode_go(text, _CONFIG)
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise SourceError(Reason.MALFORMED, path, str(error)) from error
    if (config.api_version, config.kind) != (API_VERSION, KIND):
        detail = f"{config.api_version} {config.kind} in place of {API_VERSION} {KIND}"
        raise SourceError(Reason.MALFORMED, path, detail)
    return config


def unknown_fields(document: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a document, which :func:`read_config` has read, that no version has."""
    yield from _unknown(document, "", FILE_FIELDS)
    for number, profile in enumerate(document.get("profiles") or ()):
        yield from _unknown(profile or {}, f"profiles[{number}].", PROFILE_FIELDS)
    for number, listed in enumerate(document.get("extenders") or ()):
        place, extender = f"extenders[{number}].", listed or {}
        yield from _unknown(extender, place, ExtenderConfig.__struct_encode_fields__)
        tls, resources = extender.get("tlsConfig"), extender.get("managedResources")
        yield from _unknown(tls or {}, f"{place}tlsConfig.", ExtenderTls.__struct_encode_fields__)
        for other, resource in enumerate(resources or ()):
            of_resource = f"{place}managedResources[{other}]."
            yield from _unknown(
                resource or {}, of_resource, ManagedResource.__struct_encode_fields__
            )


def _unknown(
    found: Mapping[str, Any], place: str, known: tuple[str, ...] | frozenset[str]
) -> Iterator[str]:
    names = (name for name in found if name not in known)
    return (f"{place}{name if name.isprintable() else ascii(name)}" for name in names)


def seconds_of(duration: str) -> float | None:
    """The seconds of a duration as Go reads it; None if it is none."""
    text = duration.removeprefix("-").removeprefix("+")
    if text == "0":
        return 0.0
    parts = parts_of(text)
    if not parts:
        return None
    seconds = sum(float(number) * float(unit) for number, unit in parts)
    return -seconds if duration.startswith("-") else seconds
