"""Makes Volcano's or HAMi's adapter from the flags, and puts its library on the host."""

from typing import Final

from msgspec.structs import replace

from deviceplugin.adapters.memory_factor import automatic
from deviceplugin.adapters.volcano import HandshakeMode, VolcanoAdapter
from deviceplugin.builders.builder import AdapterBuilder, Surroundings
from deviceplugin.builders.shim_files import ShimError, install, paths_below
from deviceplugin.flags import PluginOptions
from deviceplugin.kubelet.device_lists import IdUnit
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano
from vgpu.schemes.volcano.key_set import ShimPaths

_KEY_SETS: Final = {key_set.name: key_set for key_set in (VOLCANO, HAMI)}


def _make(options: PluginOptions, around: Surroundings) -> SchemeAdapter:
    """Also puts the shim on the host if the flags ask for it. Raises FactorError, ShimError."""
    key_set = _KEY_SETS[options.volcano_dialect]
    paths = _shim(options)
    policy = options.volcano_core_policy
    adapter = VolcanoAdapter(
        Volcano(
            key_set,
            memory_factor=options.volcano_memory_factor or 1,
            paths=paths,
            oversubscribe=options.volcano_oversubscribe,
            core_policy="" if policy == "default" else policy,
        ),
        split_count=options.volcano_split_count,
        memory_scaling=options.volcano_memory_scaling,
        core_scaling=options.volcano_core_scaling,
        handshake=HandshakeMode(options.volcano_handshake),
    )
    if _takes_factor_of_others(options):
        factor = automatic(adapter.devices(around.gpus), around.nodes)
        adapter = replace(adapter, codec=replace(adapter.codec, memory_factor=factor))
    return adapter


def _takes_factor_of_others(options: PluginOptions) -> bool:
    """Whether ``--volcano.memory-factor`` is ``auto``."""
    return options.volcano_memory_factor is None


def _shim(options: PluginOptions) -> ShimPaths:
    """The shim's paths on the host; installs it if the flags ask for it. Raises ShimError."""
    source, folder = options.volcano_shim_library, options.volcano_shim_dir
    paths = _KEY_SETS[options.volcano_dialect].paths
    return install(source, folder, paths) if source else paths_below(paths, folder)


def _repair(options: PluginOptions) -> None:
    """Put the shim in place again: without it nothing limits a container. Raises OSError."""
    try:
        _shim(options)
    except ShimError as error:
        raise OSError(str(error)) from error


def _unit_of(adapter: SchemeAdapter, resource: str) -> IdUnit | None:
    if isinstance(adapter, VolcanoAdapter) and resource == adapter.codec.key_set.memory:
        return IdUnit(adapter.codec.unit_bytes, "--volcano.memory-factor")
    return None


VOLCANO_BUILDER: Final = AdapterBuilder(
    _make, needs_nodes=_takes_factor_of_others, repair=_repair, unit_of=_unit_of
)
