"""Devices of other vendors in HAMi's part of kube-scheduler's configuration, which we do not serve.

HAMi's extender chooses such devices, and the vendor's device plugin then allocates what HAMi wrote.
Without a choice the pod would be bound, and would get no device. So for a pod p that requests
unserved resources r, and a node n:

    refused(p, n) = p requests a system of ours, or n has a register that HAMi reads for r,
                    or some r is not advertised(n)

What is left is a node on which a device plugin that needs no HAMi serves all of p. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from vgpu.model.objects import Node
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.schemes.volcano.key_set import HAMI

UNSERVED_FLAG: Final = "--hami.unserved-resources"


def _each(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)


_ASCEND: Final = ("910A", "910B2", "910B3", "910B4", "910B4-1", "910C", "310P")
_ILUVATAR: Final = ("BI-V100", "BI-V150", "MR-V100", "MR-V50")

CHART_RESOURCES: Final = frozenset(
    {
        *_each("amd.com/", "gpu", "gpumem", "gpucores"),
        *_each("aws.amazon.com/", "neuron", "neuroncore"),
        "birentech.com/gpu",
        "cambricon.com/vmlu",
        *_each("enflame.com/", "drs-gcu", "gcu-memory", "gcu-core", "gcu"),
        *_each("hygon.com/", "dcunum", "dcumem", "dcucores"),
        *_each("kunlunxin.com/", "xpu", "vxpu", "vxpu-memory"),
        *_each("metax-tech.com/", "gpu", "sgpu", "vcore", "vmemory"),
        "mthreads.com/vgpu",
        "vastaitech.com/va",
        # off by default in the chart
        *(
            f"huawei.com/Ascend{model}{part}"
            for model in _ASCEND
            for part in ("", "-memory", "-core")
        ),
        *(
            f"iluvatar.ai/{model}{part}"
            for model in _ILUVATAR
            for part in ("-vgpu", ".vCore", ".vMem")
        ),
    }
)
"""The resources of other vendors in HAMi's chart (2.10, ``charts/hami/values.yaml``)."""

_REGISTERS: Final[Mapping[str, str | tuple[str, ...]]] = {
    "amd.com": "hami.io/node-amd-register",
    "birentech.com": "hami.io/node-biren-register",
    **dict.fromkeys(_each("enflame.com/", "drs-gcu"), "enflame.com/gcu-drs-capacity"),
    "huawei.com": "hami.io/node-register-Ascend",
    "hygon.com": "hami.io/node-dcu-register",
    "iluvatar.ai": ("hami.io/node-BI-", "hami.io/node-MR-"),
    "kunlunxin.com": "hami.io/node-register-xpu",
    **dict.fromkeys(
        _each("metax-tech.com/", "sgpu", "vcore", "vmemory"), "metax-tech.com/node-gpu-devices"
    ),
    "nvidia.com": HAMI.register,
    "vastaitech.com": "hami.io/node-va-register",
}
"""Beginnings of the annotations of nodes in which HAMi reads devices, by the resource or its domain
(2.10, ``pkg/device/*/device.go``, ``kunlun/vdevice.go`` and ``metax/sdevice.go``). It reads other
devices from the resources that the node advertises."""


def unserved_refusal(requests: Iterable[tuple[str, str]]) -> PlacementRefusal:
    """Why a pod is not served that requests resources of other vendors, by container."""
    texts = [f"container {container} requests {resource}" for container, resource in requests]
    return PlacementRefusal(PlacementReason.UNSERVED_RESOURCE, ", ".join(texts))


def needs_hami(node: Node, requests: Iterable[tuple[str, str]]) -> bool:
    """Whether only HAMi could choose the devices of these requests on the node."""
    advertised = node.advertised
    return any(
        resource not in advertised or _is_registered(node, resource) for _, resource in requests
    )


def _is_registered(node: Node, resource: str) -> bool:
    register = _REGISTERS.get(resource) or _REGISTERS.get(resource.partition("/")[0])
    return register is not None and any(key.startswith(register) for key in node.annotations)
