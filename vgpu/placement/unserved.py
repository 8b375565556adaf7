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
from vgpu.schemes.vendors import CHART_RESOURCES, each_of
from vgpu.schemes.volcano.key_set import HAMI

__all__ = ["CHART_RESOURCES", "UNSERVED_FLAG", "needs_hami", "unserved_refusal"]

UNSERVED_FLAG: Final = "--hami.unserved-resources"


_REGISTERS: Final[Mapping[str, str | tuple[str, ...]]] = {
    "amd.com": "hami.io/node-amd-register",
    "birentech.com": "hami.io/node-biren-register",
    **dict.fromkeys(each_of("enflame.com/", "drs-gcu"), "enflame.com/gcu-drs-capacity"),
    "huawei.com": "hami.io/node-register-Ascend",
    "hygon.com": "hami.io/node-dcu-register",
    "iluvatar.ai": ("hami.io/node-BI-", "hami.io/node-MR-"),
    "kunlunxin.com": "hami.io/node-register-xpu",
    **dict.fromkeys(
        each_of("metax-tech.com/", "sgpu", "vcore", "vmemory"), "metax-tech.com/node-gpu-devices"
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
