"""How the table of ``vgpu inspect`` is laid out: widths, marks and names. Pure."""

from typing import Final

import msgspec

from vgpu.inventory import Inventory
from vgpu.ledger import DeviceEntry
from vgpu.model.names import PodRef
from vgpucli.inspect.pod_lines import who

AMOUNT, PERCENT, SHARES = 15, 8, 5
"""Widths of the numbers beside the bars."""

LIMIT: Final = 9
"""Width of the column LIMIT."""

_NUMBERS: Final = AMOUNT + PERCENT + SHARES
_BAR_SPARES: Final = 4
"""Number of columns that a bar of memory can lose before it shows too little."""
_MODEL: Final = 22
UUID: Final = 12
"""Number of characters of a UUID that identify a GPU in a cluster: GPU-8dcd427f."""
WIDE_UUID: Final = 40
"""The number of all of its characters."""


class LineLayout(msgspec.Struct, frozen=True):
    """Widths of a GPU's line and of the lines below it, in characters.

    ``name`` is for the GPU's name, ``memory`` and ``cores`` are bars; the numbers beside them have
    fixed widths, and ``model`` is the part of the name for the GPU's model.
    """

    name: int = 24
    memory: int = 12
    cores: int = 8
    model: int = 0
    wide: bool = False

    @property
    def pod(self) -> int:
        """Width of a pod's name, below a GPU's name and bar."""
        return self.name + 1 + self.memory - 2

    @property
    def width(self) -> int:
        """Width of a line."""
        return 2 + self.name + self.memory + self.cores + _NUMBERS + 5


def layout_for(width: int, *, wide: bool, longest: int = 0) -> LineLayout:
    """The layout for ``width``: surplus columns go to the model's name, then to the bars.

    Missing columns, those of LIMIT in a narrow terminal, come from the bars of memory and from
    names. ``longest`` is the length of the longest pod name if names are not cut, else 0.
    """
    least = LineLayout()
    if wide:
        whole = LineLayout(
            name=4 + WIDE_UUID + _MODEL, memory=20, cores=12, model=_MODEL, wide=True
        )
    else:
        over = max(0, width - least.width)
        missing = min(LIMIT + 1, max(0, least.width - width))
        of_bar = min(missing, _BAR_SPARES)
        model = _MODEL if over > _MODEL else 0
        over -= model
        whole = LineLayout(
            name=least.name + model - (missing - of_bar),
            memory=min(40, least.memory + over * 2 // 3) - of_bar,
            cores=min(24, least.cores + over // 3),
            model=model,
        )
    return msgspec.structs.replace(whole, name=whole.name + max(0, longest - whole.pod))


class ShownNames:
    """Names of containers: the pod's name, with the container's if several are shown."""

    def __init__(self, inventory: Inventory, *, whole: bool) -> None:
        containers: dict[str, set[str]] = {}
        for view in inventory.nodes:
            for holding in view.ledger.holdings:
                containers.setdefault(holding.pod.uid, set()).add(holding.container)
        for pending in inventory.pending:
            containers.setdefault(pending.pod.uid, set()).add(pending.container)
        for devices in inventory.nvidia:
            for holder in devices.holders:
                containers.setdefault(holder.pod.uid, set()).add(holder.container)
        self._several = {uid for uid, names in containers.items() if whole or len(names) > 1}
        self.longest = max(
            (
                *(
                    len(self.of(holding.pod, holding.container))
                    for view in inventory.nodes
                    for holding in view.ledger.holdings
                ),
                *(
                    len(self.of(holder.pod, holder.container))
                    for devices in inventory.nvidia
                    for holder in devices.holders
                ),
            ),
            default=0,
        )

    def of(self, pod: PodRef, container: str) -> str:
        """The name of a container."""
        return who(pod, container if pod.uid in self._several else "")


class Glyphs(msgspec.Struct, frozen=True):
    """The characters of bars and marks."""

    held: str = "█"
    assumed: str = "▒"
    free: str = "░"
    cut: str = "…"
    none: str = "–"
    between: str = " · "
    times: str = "×"


ASCII: Final = Glyphs("#", "=", ".", "~", "-", ", ", "x")
"""The same for an output that is not UTF-8."""


def gpu_name(entry: DeviceEntry, *, wide: bool = False) -> str:
    """A GPU's index and the start of its UUID, if they are known."""
    device = entry.device
    uuid = device.uuid if wide else device.uuid[:UUID]
    if device.index is None:
        return uuid
    return f"{device.index} {uuid}" if uuid else f"GPU {device.index}"
