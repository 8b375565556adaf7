"""Makes gpushare's adapter from the flags."""

from typing import Final

from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.builders.builder import AdapterBuilder, LegacyRefusal, Surroundings
from deviceplugin.flags import PluginOptions
from deviceplugin.kubelet.device_lists import IdUnit
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.gpushare.node import MEMORY


def _make(options: PluginOptions, around: Surroundings) -> SchemeAdapter:
    adapter = GpushareAdapter(Gpushare(options.gpushare_memory_unit))
    return adapter.on(around.node) if around.node else adapter


def _unit_of(adapter: SchemeAdapter, resource: str) -> IdUnit | None:
    if isinstance(adapter, GpushareAdapter) and resource == MEMORY:
        return IdUnit(adapter.codec.memory_unit, "--gpushare.memory-unit", "MiB")
    return None


def _refusal(adapter: SchemeAdapter) -> LegacyRefusal | None:
    return adapter.refusal if isinstance(adapter, GpushareAdapter) else None


GPUSHARE_BUILDER: Final = AdapterBuilder(_make, needs_node=True, unit_of=_unit_of, refusal=_refusal)
