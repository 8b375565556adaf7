"""The flags of the scheduler: policies, also for predictions of it, and the values of all flags."""

from collections.abc import Mapping
from typing import Any, Final, Self

import click
import msgspec

from scheduler.compat.gauges import SchedulerCompat
from vgpu.kube.quantities import is_extended_resource
from vgpu.model.allocation import RequestDefaults
from vgpu.model.units import MIB, WHOLE_DEVICE_PERCENT
from vgpu.placement.dialect import BINPACK, SPREAD
from vgpu.placement.dialects import PlacementPolicies, dialect_rows
from vgpu.placement.exclusive_rules import ExclusiveRule
from vgpu.placement.unserved import CHART_RESOURCES, UNSERVED_FLAG
from vgpu.program.flags import composed


class ExclusiveRuleType(click.ParamType[ExclusiveRule]):
    """Labels of pods that share no GPU with each other."""

    name = "labels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ExclusiveRule:
        """Convert to a rule; refuses what is no labels."""
        try:
            return ExclusiveRule.of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class UnservedResourcesType(click.ParamType[frozenset[str]]):
    """Names of extended resources that no sharing system of ours has, joined by commas."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[str]:
        """Convert to the names; refuses what is no extended resource, and what is served."""
        if isinstance(value, frozenset):
            return value
        names = frozenset(filter(None, map(str.strip, str(value).split(","))))
        for name in sorted(names):
            if not is_extended_resource(name):
                self.fail(f"{name!r} is not a resource such as example.com/gpu", param, ctx)
            if any(name in row.managed for row in dialect_rows()):
                self.fail(f"{name!r} is served", param, ctx)
        return names


_MOST: Final = 2**31 - 1
"""The largest number in HAMi's configuration (int32)."""

policy_flags: Final = composed(
    click.option(
        "--node-policy",
        type=click.Choice((BINPACK, SPREAD)),
        default=BINPACK,
        show_default=True,
        envvar="VGPU_NODE_POLICY",
        help="Whether nodes whose GPUs are in use score more, or idle ones.",
    ),
    click.option(
        "--gpu-policy",
        type=click.Choice((BINPACK, SPREAD)),
        envvar="VGPU_GPU_POLICY",
        help="Which GPUs of a node come first, with Volcano's and HAMi's.  [default: the"
        " original's]",
    ),
    click.option(
        "--volcano.exclusive-rule",
        "volcano_exclusive_rule",
        multiple=True,
        type=ExclusiveRuleType(),
        envvar="VGPU_VOLCANO_EXCLUSIVE_RULE",
        metavar="LABELS",
        help="Volcano's pods with all of these labels (KEY=VALUE, joined by commas) share no GPU"
        " with each other; repeatable. An item of Volcano's deviceshare.GPUExclusiveRules.",
    ),
    click.option(
        UNSERVED_FLAG,
        "hami_unserved_resources",
        type=UnservedResourcesType(),
        default=CHART_RESOURCES,
        envvar="VGPU_HAMI_UNSERVED_RESOURCES",
        metavar="NAMES",
        help="Resources of other vendors, joined by commas, of which only HAMi's scheduler chooses"
        " devices: pods that request one are refused beside resources that are served, and on nodes"
        " where HAMi would have to choose. vgpu scheduler check-config prints the flag for a"
        " configuration of kube-scheduler.  [default: those of HAMi's chart]",
    ),
    click.option(
        "--hami.default-memory",
        "hami_default_memory",
        type=click.IntRange(0, _MOST),
        default=0,
        show_default="the whole GPU",
        envvar="VGPU_HAMI_DEFAULT_MEMORY",
        metavar="MIB",
        help="HAMi's defaultMemory: MiB of each GPU of a container that requests neither"
        " nvidia.com/gpumem nor a percentage.",
    ),
    click.option(
        "--hami.default-cores",
        "hami_default_cores",
        type=click.IntRange(0, WHOLE_DEVICE_PERCENT),
        default=0,
        show_default="none reserved",
        envvar="VGPU_HAMI_DEFAULT_CORES",
        metavar="PERCENT",
        help="HAMi's defaultCores: percent of the cores of each GPU of a container that requests no"
        " nvidia.com/gpucores.",
    ),
    click.option(
        "--hami.default-gpu-num",
        "hami_default_gpu_num",
        type=click.IntRange(0, _MOST),
        default=1,
        show_default=True,
        envvar="VGPU_HAMI_DEFAULT_GPU_NUM",
        metavar="NUMBER",
        help="HAMi's defaultGPUNum: number of GPUs of a container that requests a part of a GPU and"
        " no nvidia.com/gpu; 0 is none.",
    ),
)
"""node_policy, gpu_policy, volcano_exclusive_rule and hami_…, each also a variable of the
environment."""


def placement_policies(params: Mapping[str, Any]) -> PlacementPolicies:
    """From the parameters of a command with :data:`policy_flags`."""
    return PlacementPolicies(
        params["node_policy"],
        params["gpu_policy"] or "",
        params["volcano_exclusive_rule"],
        params["hami_unserved_resources"],
        RequestDefaults(
            params["hami_default_memory"],
            params["hami_default_cores"],
            params["hami_default_gpu_num"],
        ),
    )


class CertificateName(click.ParamType[str]):
    """A name as certificates have it: a DNS name, an address, a URI or an e-mail address."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        text = str(value)
        if not text.strip() or not text.isprintable():
            self.fail(f"{text!r}: must be a name in a client's certificate", param, ctx)
        return text


class SchedulerOptions(msgspec.Struct, frozen=True):
    """The flags of the command that are not the web server's.

    Timeouts are in seconds; units are in bytes.
    """

    kubeconfig: str
    context: str
    request_timeout: float | None
    lease_namespace: str
    policies: PlacementPolicies
    units: Mapping[str, int | None]
    compat: tuple[SchedulerCompat, ...] = ()
    is_single: bool = False
    has_original_plugin: bool = False
    offers_best: bool = False
    http_timeout: float = 0.0
    enforces_quotas: bool = True
    client_sans: tuple[str, ...] = ()
    page_sans: tuple[str, ...] = ()

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """From the parameters of the command."""
        return cls(
            params["kubeconfig"],
            params["context"],
            params["request_timeout"],
            params["lease_namespace"],
            placement_policies(params),
            {
                "volcano": params["volcano_memory_factor"] * MIB,
                "gpushare": params["gpushare_memory_unit"],
            },
            tuple(map(SchedulerCompat, params["compat"])),
            params["single"],
            params["original_plugin"],
            params["best_node_only"],
            params["http_timeout"],
            not params["no_quotas"],
            params["client_sans"],
            params["page_sans"],
        )
