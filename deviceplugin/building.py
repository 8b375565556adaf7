"""From the flags to the scheme's role, and to how containers are given their share."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from deviceplugin.cdi import CdiFiles
from deviceplugin.clerk import Legacy
from deviceplugin.flags import Options
from deviceplugin.health import Health
from deviceplugin.late_files import LateFiles
from deviceplugin.lists import Unit
from deviceplugin.ports import Handout, Keeper
from deviceplugin.role import Role
from deviceplugin.roles.gaia import GaiaRole
from deviceplugin.roles.gpushare import GpushareRole
from deviceplugin.roles.memory_factor import automatic
from deviceplugin.roles.volcano import Signs, VolcanoRole
from deviceplugin.shim_files import ShimError, install, paths_below
from vgpu.facts import Gpu
from vgpu.kube import Node, Pod
from vgpu.model import Scheme
from vgpu.reasons import Reason, SourceError
from vgpu.schemes.gaia import Gaia
from vgpu.schemes.gpushare import Gpushare
from vgpu.schemes.gpushare_node import MEMORY as GPUSHARE_MEMORY
from vgpu.schemes.volcano import HAMI, VOLCANO, Volcano
from vgpu.schemes.volcano_dialect import Paths

DIALECTS: Final = {"volcano": VOLCANO, "hami": HAMI}


def needs_node(options: Options) -> bool:
    """Whether what containers are given depends on what the Node object says."""
    return options.scheme is Scheme.GPUSHARE


def make_role(
    options: Options,
    gpus: Iterable[Gpu],
    node: Node | None,
    nodes: Iterable[Node],
    links: Mapping[tuple[str, str], int],
) -> Role:
    """The role of these flags on a node with these cards.

    ``node`` is its object, which is there where :func:`needs_node` says so.
    ``nodes`` are all of the cluster's, looked at with ``--volcano.memory-factor auto`` only.
    ``links`` tell how near cards are to one another. Puts the shim on the host if there is one to
    be put. Raises FactorError, ShimError.
    """
    if options.scheme is Scheme.GPUSHARE:
        role = GpushareRole(Gpushare(options.gpushare_memory_unit))
        return role.on(node) if node else role
    if options.scheme is Scheme.GAIA:
        return GaiaRole(
            Gaia(options.gaia_limits_dir, options.gaia_driver_dir),
            share_mode=options.gaia_share_mode,
            node_labels=dict(options.gaia_node_label),
            links=links,
        )
    return _volcano(options, gpus, nodes)


def _volcano(options: Options, gpus: Iterable[Gpu], nodes: Iterable[Node]) -> VolcanoRole:
    dialect = DIALECTS[options.volcano_dialect]
    paths = _shim(options)
    policy = options.volcano_core_policy
    role = VolcanoRole(
        Volcano(
            dialect,
            memory_factor=options.volcano_memory_factor or 1,
            paths=paths,
            oversubscribe=options.volcano_oversubscribe,
            core_policy="" if policy == "default" else policy,
        ),
        split_count=options.volcano_split_count,
        memory_scaling=options.volcano_memory_scaling,
        core_scaling=options.volcano_core_scaling,
        signs=Signs(options.volcano_handshake),
    )
    if options.volcano_memory_factor is None:
        factor = automatic(role.devices(gpus), nodes)
        role = replace(role, language=replace(role.language, memory_factor=factor))
    return role


def _shim(options: Options) -> Paths:
    """Where the shim is on the host; put there if it is ours to put. Raises ShimError."""
    source, folder = options.volcano_shim_library, options.volcano_shim_dir
    paths = DIALECTS[options.volcano_dialect].paths
    return install(source, folder, paths) if source else paths_below(paths, folder)


def mend_shim(options: Options) -> None:
    """Put the shim in place again where that is not so: without it nothing limits a container.

    Raises OSError.
    """
    try:
        if options.scheme is Scheme.VOLCANO:
            _shim(options)
    except ShimError as error:
        raise OSError(str(error)) from error


def make_handout(options: Options, boot_id: str) -> Handout:
    """By CDI, or by files where there is none."""
    if options.cdi:
        return CdiFiles(options.cdi_spec_dir, options.scheme, boot_id)
    return LateFiles(options.run_dir, options.scheme, boot_id)


def unit_of(role: Role, resource: str) -> Unit | None:
    """What one ID of a resource stands for, where that is the operator's to say."""
    if isinstance(role, VolcanoRole) and resource == role.language.dialect.memory:
        return Unit(role.language.unit_bytes, "--volcano.memory-factor")
    if isinstance(role, GpushareRole) and resource == GPUSHARE_MEMORY:
        return Unit(role.language.memory_unit, "--gpushare.memory-unit", "MiB")
    return None


def make_keeper(
    options: Options,
    boot_id: str,
    pod: Callable[[str], Pod | None],
    health: Callable[[], Health],
    look: Callable[[], object],
) -> Keeper | None:
    """gaia's; the others have none.

    ``pod`` is one by its UID, ``health`` that of now; ``look`` is called when containers that wait
    for the driver's libraries may have them.
    """
    if options.scheme is not Scheme.GAIA:
        return None
    from deviceplugin.gaia.driver_mirror import Source as DriverSource  # noqa: PLC0415  # an extra
    from deviceplugin.gaia.keeper import GaiaKeeper, Settings, driver_version  # noqa: PLC0415

    def driver() -> tuple[int, int]:
        for gpu in health().devices:
            return driver_version(gpu.info.get("driver_version", ""))
        raise SourceError(Reason.DRIVER_ERROR, "driver version", "no card has answered")

    settings = Settings(
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
    return GaiaKeeper(settings, pod=pod, driver=driver, mirrored=look)


def legacy_refusal(options: Options, role: Role) -> Legacy | None:
    """What gpushare's plugin answers in place of a refusal, if that is wanted."""
    if options.legacy_refusal and isinstance(role, GpushareRole):
        return role.refusal
    return None
