"""How the program makes and keeps each scheme's adapter, from the flags: one row a scheme.

A row is an :class:`AdapterBuilder`, under the name of the adapter in the scheme's row
(:attr:`vgpu.schemes.row.SchemeRow.adapter`). Adapters themselves are pure and know no flag.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from deviceplugin.adapters.gaia import GaiaAdapter
from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.adapters.memory_factor import automatic
from deviceplugin.adapters.volcano import HandshakeMode, VolcanoAdapter
from deviceplugin.allocate.allocator import Legacy
from deviceplugin.builders.shim_files import ShimError, install, paths_below
from deviceplugin.flags import PluginOptions
from deviceplugin.gaia.migration import Migrated, read_gpu_manager
from deviceplugin.health.device_health import Health
from deviceplugin.kubelet.device_lists import IdUnit
from deviceplugin.ports import SchemeServices
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.model.allocation import Device
from vgpu.model.facts import Gpu
from vgpu.model.names import Scheme
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.registry import names_of, registry
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano
from vgpu.schemes.volcano.key_set import ShimPaths


class AdapterInputs(msgspec.Struct, frozen=True):
    """The node and cluster that an adapter is made for.

    Attributes:
        gpus: the node's.
        node: the Node object, where the scheme needs it, see :class:`AdapterBuilder`.
        nodes: all nodes of the cluster, where the scheme needs them.
        links: how near GPUs are to one another, where the scheme needs it.
    """

    gpus: tuple[Gpu, ...] = ()
    node: Node | None = None
    nodes: tuple[Node, ...] = ()
    links: Mapping[tuple[str, str], int] = {}


class ServicesBuilder(Protocol):
    """Makes the services of a scheme besides the injector."""

    def __call__(
        self,
        options: PluginOptions,
        boot_id: str,
        pod: Callable[[str], Pod | None],
        health: Callable[[], Health],
        files_ready: Callable[[], object],
    ) -> SchemeServices | None:
        """``pod`` finds a pod by its UID, ``health`` returns the current health.

        ``files_ready`` is called when containers that wait for the scheme's files may have them.
        """
        ...


def _never(_: PluginOptions) -> bool:
    return False


def _nothing(_: PluginOptions) -> None:
    """The scheme has no files on the host."""


def _no_unit(_: SchemeAdapter, __: str) -> IdUnit | None:
    return None


def _no_services(*_: object, **__: object) -> None:
    """The injector is all that the scheme needs."""


def _no_refusal(_: SchemeAdapter) -> Legacy | None:
    return None


def _no_predecessor(_: PluginOptions, __: Iterable[Device]) -> Migrated | None:
    return None


class AdapterBuilder(msgspec.Struct, frozen=True):
    """How one scheme's adapter is made.

    Attributes:
        make: makes the adapter of these flags, and puts the scheme's files on the host. Raises
            FactorError, ShimError.
        needs_node: whether the environment of containers depends on the Node object.
        needs_nodes: whether the flags need all of the cluster's nodes to be read.
        needs_links: whether the scheme uses how near GPUs are to one another.
        repair: repairs the scheme's files on the host. Raises OSError.
        unit_of: what one ID of a resource stands for, where the operator decides it.
        services: makes the services of the scheme besides the injector; returns None if it has
            none.
        refusal: returns the original's answer in place of a refusal; None if the original refuses.
        predecessor: reads the original plugin's record of its pods, before there is a
            checkpoint of ours; returns None if the original keeps none.
    """

    make: Callable[[PluginOptions, AdapterInputs], SchemeAdapter]
    needs_node: bool = False
    needs_nodes: Callable[[PluginOptions], bool] = _never
    needs_links: bool = False
    repair: Callable[[PluginOptions], None] = _nothing
    unit_of: Callable[[SchemeAdapter, str], IdUnit | None] = _no_unit
    services: ServicesBuilder = _no_services
    refusal: Callable[[SchemeAdapter], Legacy | None] = _no_refusal
    predecessor: Callable[[PluginOptions, Iterable[Device]], Migrated | None] = _no_predecessor


_KEY_SETS: Final = {key_set.name: key_set for key_set in (VOLCANO, HAMI)}


def _make_volcano(options: PluginOptions, inputs: AdapterInputs) -> SchemeAdapter:
    """Also puts the shim on the host if the flags ask for it. Raises FactorError, ShimError."""
    key_set = _KEY_SETS[options.volcano_dialect].named(names_of(options.volcano_dialect))
    paths = _shim_paths(options)
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
        factor = automatic(adapter.devices(inputs.gpus), inputs.nodes)
        adapter = replace(adapter, codec=replace(adapter.codec, memory_factor=factor))
    return adapter


def _takes_factor_of_others(options: PluginOptions) -> bool:
    """Whether ``--volcano.memory-factor`` is ``auto``."""
    return options.volcano_memory_factor is None


def _shim_paths(options: PluginOptions) -> ShimPaths:
    """The shim's paths on the host; installs it if the flags ask for it. Raises ShimError."""
    source, folder = options.volcano_shim_library, options.volcano_shim_dir
    paths = _KEY_SETS[options.volcano_dialect].paths
    return install(source, folder, paths) if source else paths_below(paths, folder)


def _repair_shim(options: PluginOptions) -> None:
    """Put the shim in place again: without it nothing limits a container. Raises OSError."""
    try:
        _shim_paths(options)
    except ShimError as error:
        raise OSError(str(error)) from error


def _volcano_unit(adapter: SchemeAdapter, resource: str) -> IdUnit | None:
    if isinstance(adapter, VolcanoAdapter) and resource == adapter.codec.key_set.memory:
        return IdUnit(adapter.codec.unit_bytes, "--volcano.memory-factor")
    return None


VOLCANO_BUILDER: Final = AdapterBuilder(
    _make_volcano, needs_nodes=_takes_factor_of_others, repair=_repair_shim, unit_of=_volcano_unit
)


def _make_gpushare(options: PluginOptions, inputs: AdapterInputs) -> SchemeAdapter:
    adapter = GpushareAdapter(Gpushare(options.gpushare_memory_unit, names=names_of("gpushare")))
    return adapter.on(inputs.node) if inputs.node else adapter


def _gpushare_unit(adapter: SchemeAdapter, resource: str) -> IdUnit | None:
    if isinstance(adapter, GpushareAdapter) and resource == adapter.codec.names.memory:
        return IdUnit(adapter.codec.memory_unit, "--gpushare.memory-unit", "MiB")
    return None


def _gpushare_refusal(adapter: SchemeAdapter) -> Legacy | None:
    return adapter.refusal if isinstance(adapter, GpushareAdapter) else None


GPUSHARE_BUILDER: Final = AdapterBuilder(
    _make_gpushare, needs_node=True, unit_of=_gpushare_unit, refusal=_gpushare_refusal
)


def _make_gaia(options: PluginOptions, inputs: AdapterInputs) -> SchemeAdapter:
    return GaiaAdapter(
        Gaia(options.gaia_limits_dir, options.gaia_driver_dir, names=names_of("gaia")),
        share_mode=options.gaia_share_mode,
        node_labels=dict(options.gaia_node_label),
        links=inputs.links,
    )


def _gaia_services(
    options: PluginOptions,
    boot_id: str,
    pod: Callable[[str], Pod | None],
    health: Callable[[], Health],
    files_ready: Callable[[], object],
) -> SchemeServices:
    """The sockets, the limits and the driver's libraries."""
    from deviceplugin.gaia.driver_mirror import DriverSource  # noqa: PLC0415  # an extra
    from deviceplugin.gaia.services import GaiaServices, GaiaSettings, driver_version  # noqa: PLC0415

    def driver() -> tuple[int, int]:
        for gpu in health().devices:
            return driver_version(gpu.info.get("driver_version", ""))
        raise SourceError(Reason.DRIVER_ERROR, "driver version", "no GPU has answered")

    settings = GaiaSettings(
        limits_dir=options.gaia_limits_dir,
        driver_dir=options.gaia_driver_dir,
        driver=DriverSource(
            root=options.gaia_host_root,
            shares=options.gaia_share_mode,
            control=options.gaia_control_library,
        ),
        procfs=options.path_procfs,
        cgroupfs=options.path_cgroupfs,
        log_dir=options.kubelet_log_dir,
        boot_id=boot_id,
    )
    return GaiaServices(settings, pod=pod, driver=driver, mirrored=files_ready)


def _gpu_manager_record(options: PluginOptions, devices: Iterable[Device]) -> Migrated:
    return read_gpu_manager(options.gaia_checkpoint, devices)


GAIA_BUILDER: Final = AdapterBuilder(
    _make_gaia, needs_links=True, services=_gaia_services, predecessor=_gpu_manager_record
)


BUILDERS: Final[Mapping[str, AdapterBuilder]] = {
    "volcano": VOLCANO_BUILDER,
    "gpushare": GPUSHARE_BUILDER,
    "gaia": GAIA_BUILDER,
}


def builder_of(scheme: Scheme) -> AdapterBuilder:
    """The builder of a scheme's adapter. Raises KeyError for a scheme that is not served."""
    row = registry().of(scheme)
    return BUILDERS[row.adapter if row else ""]
