"""What Kueue's configuration makes of the requests of a pod; pure.

Rules: ``dropExcludedResources`` and ``applyResourceTransformations`` of kubernetes-sigs/kueue
v0.17.0, ``pkg/workload/workload.go``. Where the ConfigMap was not read, requests count as they are.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Annotated, Final

import msgspec

from vgpu.io.yaml_documents import NotYamlError, yaml_document
from vgpu.kube.errors import one_line
from vgpu.kube.kueue_kinds import CPU
from vgpu.kube.quantities import exact

NAMESPACE: Final = "kueue-system"
CONFIG_MAP: Final = "kueue-manager-config"
"""The ConfigMap of Kueue's own manifests."""

UNKNOWN_CONFIG: Final = "transformations unknown: amounts before transformation"
"""What a note reports where the ConfigMap was not read."""

KEY: Final = "controller_manager_config.yaml"

_MILLI: Final = 1000
_MOST: Final = 2**63 - 1


class Transformation(msgspec.Struct, frozen=True):
    """What one resource of a pod counts as.

    Attributes:
        outputs: units of each resource for one unit of the input.
        multiply_by: the resource whose amount multiplies the input; "" is none.
        replaces: whether the input itself no longer counts.
    """

    outputs: Mapping[str, Fraction] = {}
    multiply_by: str = ""
    replaces: bool = False


class KueueConfig(msgspec.Struct, frozen=True):
    """The part of the configuration that decides what counts.

    Attributes:
        transformations: by the name of the input.
        excluded: prefixes of resources that do not count.
        problem: why it is unknown, for people; "" if it was read.
        mapped: the resources that stand for classes of devices of DRA (``deviceClassMappings``).
        ignores_undeclared: whether a resource that a ClusterQueue has no quota of keeps nobody back
            (``quotaCheckStrategy: IgnoreUndeclared``, since Kueue 0.18 behind a feature gate).
    """

    transformations: Mapping[str, Transformation] = {}
    excluded: tuple[str, ...] = ()
    problem: str = ""
    ignores_undeclared: bool = False
    mapped: frozenset[str] = frozenset()

    @property
    def made(self) -> frozenset[str]:
        """The resources that count although neither a node nor a pod has them."""
        outputs = (each.outputs for each in self.transformations.values())
        return self.mapped.union(*outputs)

    def counted(self, requests: Mapping[str, int]) -> dict[str, int]:
        """What the requests of a pod count as, in the unit of each resource."""
        kept = {name: each for name, each in requests.items() if not name.startswith(self.excluded)}
        if self.transformations.keys().isdisjoint(kept):
            return kept
        sums: dict[str, Fraction] = {}
        for name, amount in kept.items():
            transformation = self.transformations.get(name)
            if transformation is None:
                sums[name] = sums.get(name, Fraction(0)) + Fraction(amount)
                continue
            if transformation.multiply_by in kept:
                factor = transformation.multiply_by
                amount *= _whole(factor, kept[factor])  # noqa: PLW2901
            for output, ratio in transformation.outputs.items():
                part = ratio * _whole(name, amount) * (_MILLI if output == CPU else 1)
                sums[output] = sums.get(output, Fraction(0)) + part
            if not transformation.replaces:
                sums[name] = sums.get(name, Fraction(0)) + Fraction(amount)
        return {name: ceil(total) for name, total in sums.items()}


def _whole(name: str, amount: int) -> int:
    """An amount in whole units, rounded up: Kueue multiplies by these."""
    return -(-amount // _MILLI) if name == CPU else amount


class _TransformationFields(msgspec.Struct, rename="camel"):
    input: str = ""
    strategy: str | None = None
    outputs: dict[str, str | Annotated[int, msgspec.Meta(le=_MOST)] | float] | None = None
    multiply_by: str | None = None


class _DeviceClassMapping(msgspec.Struct):
    name: str = ""


class _Resources(msgspec.Struct, rename="camel"):
    transformations: list[_TransformationFields] | None = None
    exclude_resource_prefixes: list[str] | None = None
    quota_check_strategy: str | None = None
    device_class_mappings: list[_DeviceClassMapping] | None = None


class _Configuration(msgspec.Struct, rename="camel"):
    resources: _Resources | None = None
    feature_gates: dict[str, bool] | None = None


def kueue_config(data: Mapping[str, str] | None) -> KueueConfig:
    """The configuration in the data of the ConfigMap; None is a ConfigMap that does not exist.

    Never raises: an unreadable one is unknown, with the problem.
    """
    where = f"ConfigMap {NAMESPACE}/{CONFIG_MAP}"
    if data is None:
        return KueueConfig(problem=f"{where} does not exist")
    if KEY not in data:
        return KueueConfig(problem=f"{where} has no key {KEY}")
    try:
        read = msgspec.convert(yaml_document(data[KEY], fast=True), _Configuration)
    except (NotYamlError, msgspec.ValidationError) as error:
        return KueueConfig(problem=one_line(f"{where}: {KEY} cannot be read: {error}"))
    resources = read.resources or _Resources()
    transformations = {}
    for each in resources.transformations or ():
        outputs = {}
        for name, quantity in (each.outputs or {}).items():
            ratio = exact(str(quantity))
            if ratio is None:
                problem = f"{where}: the output {name} of {each.input} is no quantity: {quantity!r}"
                return KueueConfig(problem=one_line(problem))
            outputs[name] = ratio
        replaces = each.strategy == "Replace"
        transformations[each.input] = Transformation(outputs, each.multiply_by or "", replaces)
    has_gate = (read.feature_gates or {}).get("QuotaCheckStrategy", False)
    return KueueConfig(
        transformations,
        tuple(resources.exclude_resource_prefixes or ()),
        ignores_undeclared=has_gate and resources.quota_check_strategy == "IgnoreUndeclared",
        mapped=frozenset(each.name for each in resources.device_class_mappings or ()),
    )
