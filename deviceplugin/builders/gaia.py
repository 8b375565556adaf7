"""Makes gpu-manager's adapter and services from the flags."""

from collections.abc import Callable, Iterable
from typing import Final

from deviceplugin.adapters.gaia import GaiaAdapter
from deviceplugin.builders.builder import AdapterBuilder, Surroundings
from deviceplugin.flags import PluginOptions
from deviceplugin.gaia.migration import Migrated, read_gpu_manager
from deviceplugin.health.device_health import Health
from deviceplugin.ports import SchemeServices
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.model.allocation import Device
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.gaia.codec import Gaia


def _make(options: PluginOptions, around: Surroundings) -> SchemeAdapter:
    return GaiaAdapter(
        Gaia(options.gaia_limits_dir, options.gaia_driver_dir),
        share_mode=options.gaia_share_mode,
        node_labels=dict(options.gaia_node_label),
        links=around.links,
    )


def _services(
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


def _predecessor(options: PluginOptions, devices: Iterable[Device]) -> Migrated:
    return read_gpu_manager(options.gaia_checkpoint, devices)


GAIA_BUILDER: Final = AdapterBuilder(
    _make, needs_links=True, services=_services, predecessor=_predecessor
)
