"""How the program makes and keeps one scheme's adapter: the shape of a row of :mod:`.served`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from deviceplugin.flags import PluginOptions
from deviceplugin.gaia.migration import Migrated
from deviceplugin.health.device_health import Health
from deviceplugin.kubelet.device_lists import IdUnit
from deviceplugin.ports import SchemeServices
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.model.allocation import Device
from vgpu.model.facts import Gpu
from vgpu.model.objects import Node, Pod

LegacyRefusal = Callable[[int, tuple[Device, ...]], Mapping[str, str]]
"""Units that were asked for, the node's devices -> the environment of the original's refusal."""


class Surroundings(msgspec.Struct, frozen=True):
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
    ) -> SchemeServices:
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


class AdapterBuilder(msgspec.Struct, frozen=True):
    """How one scheme's adapter is made.

    Attributes:
        make: makes the adapter of these flags. Raises FactorError, ShimError.
        needs_node: whether the environment of containers depends on the Node object.
        needs_nodes: whether the flags need all of the cluster's nodes to be read.
        needs_links: whether the scheme uses how near GPUs are to one another.
        repair: repairs the scheme's files on the host. Raises OSError.
        unit_of: what one ID of a resource stands for, where the operator decides it.
        services: makes the services of the scheme besides the injector; None if it has none.
        refusal: the original's answer in place of a refusal; None if the original refuses.
        predecessor: reads the original plugin's record of its pods, before there is a
            checkpoint of ours; None if the original keeps none.
    """

    make: Callable[[PluginOptions, Surroundings], SchemeAdapter]
    needs_node: bool = False
    needs_nodes: Callable[[PluginOptions], bool] = _never
    needs_links: bool = False
    repair: Callable[[PluginOptions], None] = _nothing
    unit_of: Callable[[SchemeAdapter, str], IdUnit | None] = _no_unit
    services: ServicesBuilder | None = None
    refusal: Callable[[SchemeAdapter], LegacyRefusal | None] | None = None
    predecessor: Callable[[PluginOptions, Iterable[Device]], Migrated] | None = None
