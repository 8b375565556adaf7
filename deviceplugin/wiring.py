"""Makes the scheme's adapter, the injector and the services from the flags."""

from collections.abc import Callable, Iterable, Mapping

from deviceplugin.allocate.allocator import Legacy
from deviceplugin.builders.builder import Surroundings
from deviceplugin.builders.served import builder_of
from deviceplugin.flags import PluginOptions
from deviceplugin.gaia.migration import Migrated
from deviceplugin.health.device_health import Health
from deviceplugin.injection.cdi import CdiInjector
from deviceplugin.injection.files import FileInjector
from deviceplugin.kubelet.device_lists import IdUnit
from deviceplugin.ports import Injector, SchemeServices
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.model.allocation import Device
from vgpu.model.facts import Gpu
from vgpu.model.objects import Node, Pod


def needs_node(options: PluginOptions) -> bool:
    """Whether the environment of containers depends on the Node object."""
    return builder_of(options.scheme).needs_node


def needs_nodes(options: PluginOptions) -> bool:
    """Whether the flags need all nodes of the cluster to be read."""
    return builder_of(options.scheme).needs_nodes(options)


def needs_links(options: PluginOptions) -> bool:
    """Whether the scheme uses how near GPUs are to one another."""
    return builder_of(options.scheme).needs_links


def make_adapter(
    options: PluginOptions,
    gpus: Iterable[Gpu],
    node: Node | None,
    nodes: Iterable[Node],
    links: Mapping[tuple[str, str], int],
) -> SchemeAdapter:
    """The adapter of these flags on a node with these GPUs.

    ``node``, ``nodes`` and ``links`` are set if the functions above return True. Puts the scheme's
    files on the host. Raises FactorError, ShimError.
    """
    around = Surroundings(tuple(gpus), node, tuple(nodes), links)
    return builder_of(options.scheme).make(options, around)


def repair_shim(options: PluginOptions) -> None:
    """Repair the scheme's files on the host. Raises OSError."""
    builder_of(options.scheme).repair(options)


def make_injector(options: PluginOptions, boot_id: str) -> Injector:
    """The injector: by CDI, or by files without CDI."""
    if options.cdi:
        return CdiInjector(options.cdi_spec_dir, options.scheme, boot_id)
    return FileInjector(options.run_dir, options.scheme, boot_id)


def unit_of(adapter: SchemeAdapter, resource: str) -> IdUnit | None:
    """What one ID of a resource stands for, where the operator decides it."""
    return builder_of(adapter.scheme).unit_of(adapter, resource)


def make_services(
    options: PluginOptions,
    boot_id: str,
    pod: Callable[[str], Pod | None],
    health: Callable[[], Health],
    files_ready: Callable[[], object],
) -> SchemeServices | None:
    """The scheme's services besides the injector; None if it has none.

    ``pod`` finds a pod by its UID, ``health`` returns the current health; ``files_ready`` is called
    when the files that containers of the scheme wait for may be there.
    """
    services = builder_of(options.scheme).services
    return services(options, boot_id, pod, health, files_ready) if services else None


def legacy_refusal(options: PluginOptions, adapter: SchemeAdapter) -> Legacy | None:
    """The original plugin's answer in place of a refusal, if the flags ask for it."""
    refusal = builder_of(adapter.scheme).refusal
    return refusal(adapter) if options.legacy_refusal and refusal else None


def predecessor(options: PluginOptions, devices: Iterable[Device]) -> Migrated | None:
    """The original plugin's record of its pods; None if it keeps none."""
    read = builder_of(options.scheme).predecessor
    return read(options, devices) if read else None
