"""From the flags to the scheme's role, and to how containers are given their share."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from deviceplugin.adapters.gaia import GaiaAdapter
from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.adapters.memory_factor import automatic
from deviceplugin.adapters.volcano import HandshakeMode, VolcanoAdapter
from deviceplugin.allocate.allocator import Legacy
from deviceplugin.flags import PluginOptions
from deviceplugin.health.device_health import Health
from deviceplugin.injection.cdi import CdiInjector
from deviceplugin.injection.files import FileInjector
from deviceplugin.injection.shim_files import ShimError, install, paths_below
from deviceplugin.kubelet.device_lists import IdUnit
from deviceplugin.ports import Injector, SchemeServices
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.facts import Gpu
from vgpu.kube.objects import Node, Pod
from vgpu.model import Scheme
from vgpu.reasons import Reason, SourceError
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.gpushare.node import MEMORY as GPUSHARE_MEMORY
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano
from vgpu.schemes.volcano.key_set import ShimPaths

DIALECTS: Final = {"volcano": VOLCANO, "hami": HAMI}


def needs_node(options: PluginOptions) -> bool:
    """Whether what containers are given depends on what the Node object says."""
    return options.scheme is Scheme.GPUSHARE


def make_adapter(
    options: PluginOptions,
    gpus: Iterable[Gpu],
    node: Node | None,
    nodes: Iterable[Node],
    links: Mapping[tuple[str, str], int],
) -> SchemeAdapter:
    """The role of these flags on a node with these GPUs.

    ``node`` is its object, which is there where :func:`needs_node` says so.
    ``nodes`` are all of the cluster's, looked at with ``--volcano.memory-factor auto`` only.
    ``links`` tell how near GPUs are to one another. Puts the shim on the host if there is one to
    be put. Raises FactorError, ShimError.
    """
    if options.scheme is Scheme.GPUSHARE:
        adapter = GpushareAdapter(Gpushare(options.gpushare_memory_unit))
        return adapter.on(node) if node else adapter
    if options.scheme is Scheme.GAIA:
        return GaiaAdapter(
            Gaia(options.gaia_limits_dir, options.gaia_driver_dir),
            share_mode=options.gaia_share_mode,
            node_labels=dict(options.gaia_node_label),
            links=links,
        )
    return _volcano(options, gpus, nodes)


def _volcano(options: PluginOptions, gpus: Iterable[Gpu], nodes: Iterable[Node]) -> VolcanoAdapter:
    key_set = DIALECTS[options.volcano_dialect]
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
        signs=HandshakeMode(options.volcano_handshake),
    )
    if options.volcano_memory_factor is None:
        factor = automatic(adapter.devices(gpus), nodes)
        adapter = replace(adapter, codec=replace(adapter.codec, memory_factor=factor))
    return adapter


def _shim(options: PluginOptions) -> ShimPaths:
    """Where the shim is on the host; put there if it is ours to put. Raises ShimError."""
    source, folder = options.volcano_shim_library, options.volcano_shim_dir
    paths = DIALECTS[options.volcano_dialect].paths
    return install(source, folder, paths) if source else paths_below(paths, folder)


def mend_shim(options: PluginOptions) -> None:
    """Put the shim in place again where that is not so: without it nothing limits a container.

    Raises OSError.
    """
    try:
        if options.scheme is Scheme.VOLCANO:
            _shim(options)
    except ShimError as error:
        raise OSError(str(error)) from error


def make_injector(options: PluginOptions, boot_id: str) -> Injector:
    """By CDI, or by files where there is none."""
    if options.cdi:
        return CdiInjector(options.cdi_spec_dir, options.scheme, boot_id)
    return FileInjector(options.run_dir, options.scheme, boot_id)


def unit_of(adapter: SchemeAdapter, resource: str) -> IdUnit | None:
    """What one ID of a resource stands for, where that is the operator's to say."""
    if isinstance(adapter, VolcanoAdapter) and resource == adapter.codec.key_set.memory:
        return IdUnit(adapter.codec.unit_bytes, "--volcano.memory-factor")
    if isinstance(adapter, GpushareAdapter) and resource == GPUSHARE_MEMORY:
        return IdUnit(adapter.codec.memory_unit, "--gpushare.memory-unit", "MiB")
    return None


def make_services(
    options: PluginOptions,
    boot_id: str,
    pod: Callable[[str], Pod | None],
    health: Callable[[], Health],
    look: Callable[[], object],
) -> SchemeServices | None:
    """gaia's; the others have none.

    ``pod`` is one by its UID, ``health`` that of now; ``look`` is called when containers that wait
    for the driver's libraries may have them.
    """
    if options.scheme is not Scheme.GAIA:
        return None
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
    return GaiaServices(settings, pod=pod, driver=driver, mirrored=look)


def legacy_refusal(options: PluginOptions, adapter: SchemeAdapter) -> Legacy | None:
    """What gpushare's plugin answers in place of a refusal, if that is wanted."""
    if options.legacy_refusal and isinstance(adapter, GpushareAdapter):
        return adapter.refusal
    return None
