"""Extended resources of other vendors than NVIDIA. Pure."""

from typing import Final


def each_of(prefix: str, *names: str) -> tuple[str, ...]:
    """The names with the prefix."""
    return tuple(prefix + name for name in names)


_ASCEND: Final = ("910A", "910B2", "910B3", "910B4", "910B4-1", "910C", "310P")
_ILUVATAR: Final = ("BI-V100", "BI-V150", "MR-V100", "MR-V50")

CHART_RESOURCES: Final = frozenset(
    {
        *each_of("amd.com/", "gpu", "gpumem", "gpucores"),
        *each_of("aws.amazon.com/", "neuron", "neuroncore"),
        "birentech.com/gpu",
        "cambricon.com/vmlu",
        *each_of("enflame.com/", "drs-gcu", "gcu-memory", "gcu-core", "gcu"),
        *each_of("hygon.com/", "dcunum", "dcumem", "dcucores"),
        *each_of("kunlunxin.com/", "xpu", "vxpu", "vxpu-memory"),
        *each_of("metax-tech.com/", "gpu", "sgpu", "vcore", "vmemory"),
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

_PARTLY: Final = frozenset({"amd.com/", "aws.amazon.com/", "huawei.com/"})
"""Domains of which not all resources are devices that compute."""

_BEGINNINGS: Final = (
    *sorted({f"{name.partition('/')[0]}/" for name in CHART_RESOURCES} - _PARTLY),
    "amd.com/gpu",
    "aws.amazon.com/neuron",
    "huawei.com/Ascend",
    "huawei.com/npu",
    "gpu.intel.com/",
    "habana.ai/gaudi",
    "google.com/tpu",
)
"""Beginnings of the resources; the last three are of vendors that HAMi's chart does not have (the
device plugins of Intel, Habana and Google)."""


def is_of_other_vendor(name: str) -> bool:
    """Whether the resource is a device of another vendor than NVIDIA."""
    return name.startswith(_BEGINNINGS)
