"""``vgpu inspect``'s table: nodes, their GPUs as bars, and below each GPU its holdings.

The whole output has one layout, so that columns are aligned from node to node.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from rich.console import Console
from rich.style import Style

from vgpu.inventory import (
    FreeCapacity,
    Inventory,
    NodeView,
    Pending,
    available_bytes,
    unavailable,
)
from vgpu.ledger import Conflict, DeviceEntry, Holding
from vgpu.ledger.limit_verdict import UNCAPPED, limit_word
from vgpu.model.durations import age
from vgpu.model.folding import examples_text, folded, folded_texts, masked
from vgpu.model.names import Phase, PodRef
from vgpu.model.units import GIB, count, rounded_size
from vgpu.placement.result import PlacementReason
from vgpu.program.terminal import (
    BAD,
    BOLD,
    DIM,
    DOUBTFUL,
    GOOD,
    NARROWEST,
    PLAIN,
    Line,
    Piece,
    text_width,
    write,
)
from vgpu.schemes.registry import registry
from vgpucli.free_texts import kept_text, maybe_held_text
from vgpucli.inspect.capacity_texts import (
    KEPT_FREE,
    apart_text,
    fitting,
    percent_text,
    wanted,
)
from vgpucli.inspect.layout import (
    AMOUNT,
    ASCII,
    LIMIT,
    PERCENT,
    SHARES,
    UUID,
    WIDE_UUID,
    Glyphs,
    LineLayout,
    ShownNames,
    gpu_name,
    layout_for,
)
from vgpucli.inspect.pod_lines import is_stuck, nvidia_lines, other_lines, state_text, who

_PHASES: Final = {Phase.ASSIGNED: GOOD, Phase.ASSUMED: DOUBTFUL, Phase.RELEASED: DIM}


def show(
    console: Console,
    inventory: Inventory,
    as_of: float,
    *,
    wide: bool = False,
    nothing: str = "No node shares GPUs.",
) -> None:
    """Print the inventory; ages are relative to ``as_of``, unix seconds.

    ``nothing`` is printed if there are no nodes. On a terminal names are cut to its width;
    elsewhere, and if ``wide``, they are whole.
    """
    width = max(NARROWEST, console.width)
    names = ShownNames(inventory, whole=wide)
    room = width if inventory.limits is None else width - LIMIT - 1
    layout = layout_for(
        room, wide=wide, longest=0 if console.is_terminal and not wide else names.longest
    )
    glyphs = Glyphs() if console.encoding.startswith("utf") else ASCII
    table = _Table(layout, glyphs, names, width, text_width(console), as_of, nothing, inventory)
    write(console, table.lines())


class _Table(msgspec.Struct, frozen=True):
    """The lines of one output."""

    layout: LineLayout
    glyphs: Glyphs
    names: ShownNames
    width: int
    text_width: int
    as_of: float
    nothing: str
    inventory: Inventory

    def lines(self) -> Iterator[Line]:
        """All lines."""
        inventory = self.inventory
        if inventory.nodes:
            yield from self._header()
        for view in inventory.nodes:
            yield from self._node(view)
        if not (inventory.nodes or inventory.nvidia or inventory.others):
            yield [(self.nothing, BOLD)]
            yield []
        yield from nvidia_lines(
            inventory.nvidia,
            self.as_of,
            self._name,
            width=self.width,
            dash=self.glyphs.none,
            times=self.glyphs.times,
        )
        yield from other_lines(inventory.others, self.as_of, width=self.width)
        yield from self._pending(inventory.pending)
        yield from self._conflicts(inventory.nodes)
        yield from self._free_capacities(inventory.free_capacities)
        for note in inventory.notes:
            yield from self._wrapped(f"note: {note}", "", DIM)
        yield from self._wrapped(_summary(inventory, self.as_of), "", BOLD)

    # ------------------------------------------------------------ nodes

    def _header(self) -> Iterator[Line]:
        """The columns of GPUs, those of the pods below them, and what the bars mean."""
        layout, glyphs = self.layout, self.glyphs
        text = (
            f"  {'GPU':<{layout.name}} {'MEMORY':<{layout.memory}} {'held/total':>{AMOUNT}}"
            f" {'CORES':<{layout.cores}} {'held/all':>{PERCENT}} SHARE"
        )
        yield [(text, DIM)]
        pods = (
            f"    {'POD':<{layout.pod}} {'MEMORY':>{AMOUNT}} {'PHASE':<{layout.cores}}"
            f" {'CORES':>{PERCENT}} {'AGE':>{SHARES}}"
            f"{'' if self.inventory.limits is None else ' LIMIT'}"
        )
        yield [(pods, DIM)]
        marks = (
            f"{glyphs.held} held",
            f"{glyphs.assumed} held, reserved by the scheduler only",
            f"{glyphs.free} free",
            f"{glyphs.none} unknown or none",
        )
        yield from self._wrapped(glyphs.between.join(marks), "  ", DIM)

    def _node(self, view: NodeView) -> Iterator[Line]:
        entries = view.ledger.devices
        yield from self._node_head(view)
        if view.placement.closed is not None:
            detail = f": {view.detail}" if view.detail else ""
            text = f"takes no new pod: {view.placement.closed.explanation}{detail}"
            yield from self._wrapped(text, "  ", BAD)
        standing = (
            (f"pod {each.pod.namespace}/{each.pod.name}", each.text) for each in view.standing
        )
        for text in folded_texts(standing):
            yield from self._wrapped(f"kept free for {text}", "  ", DOUBTFUL)
        for entry in entries:
            yield self._gpu(view, entry, cores=_shares_cores(view))
            kept = kept_text(view, entry)
            if kept:
                yield from self._wrapped(kept, "    ", DOUBTFUL)
            for holding in entry.holdings:
                yield from self._holding(holding)
        if view.ledger.unplaced:
            yield [("  on no known GPU", BAD)]
            for holding in view.ledger.unplaced:
                yield from self._holding(holding)
                if holding.share.device and not (self.layout.wide or holding.resource_claim_shares):
                    named = f"{holding.sources[0]} name {holding.share.device}"
                    yield [(f"      {named}", DOUBTFUL)]
        yield []

    def _node_head(self, view: NodeView) -> Iterator[Line]:
        head: list[Piece] = [(view.node.name, BOLD)]
        facts = [", ".join(view.sharing)]
        facts.append(count(len(view.full_ledger.devices), "GPU"))
        if any(entry.free_memory_bytes is not None for entry in view.full_ledger.devices):
            free = available_bytes(view)
            apart = view.free_bytes - free
            maybe_held = maybe_held_text(view.maybe_held)
            facts += [f"{rounded_size(free)} free{maybe_held}"] if free or not apart else []
            facts += [f"{rounded_size(apart)} unavailable"] if apart else []
            facts += [f"{rounded_size(view.kept_bytes)} kept free"] if view.kept_bytes else []
        text = self.glyphs.between.join(facts)
        is_beside = len(view.node.name) + 2 + len(text) <= self.text_width
        head += [(f"  {text}", DIM)] if is_beside else []
        if not view.known:
            text_of_unknown = "cannot be read" if view.is_unread else "not a node of this cluster"
            head.append((f"  {text_of_unknown}", BAD))
        elif not view.node.ready:
            head.append(("  NotReady", BAD))
        if not view.unit_confirmed:
            head.append(("  unit unconfirmed", BAD))
        if view.node.unschedulable:
            head.append(("  cordoned", DOUBTFUL))
        yield head
        if not is_beside:
            yield from self._wrapped(text, "  ", DIM)

    def _gpu(self, view: NodeView, entry: DeviceEntry, *, cores: bool) -> Line:
        device, held, layout = entry.device, entry.held, self.layout
        name = gpu_name(entry, wide=layout.wide)
        bad = "lost" if entry.lost else "" if device.healthy else "unhealthy"
        room = layout.name - len(bad) - bool(bad)
        if layout.model and device.model:
            name = f"{name:<{4 + (WIDE_UUID if layout.wide else UUID)}} {device.model}"
        pieces: list[Piece] = [("  ", PLAIN), (self._cut(name, room, tail=0), BOLD)]
        pieces.append((f" {bad} " if bad else " ", BAD))
        assumed = [h.share for h in entry.holdings if h.phase is Phase.ASSUMED]
        pieces += self._bar(
            layout.memory,
            held.memory_bytes,
            sum(share.memory_bytes or 0 for share in assumed),
            device.memory_bytes,
        )
        pieces.append((f" {self._of(_known_bytes(entry), device.memory_bytes):>{AMOUNT}} ", PLAIN))
        pieces += self._bar(
            layout.cores,
            held.cores_milli,
            sum(share.cores_milli or 0 for share in assumed),
            device.cores_milli if cores else None,
        )
        percent = (
            f"{percent_text(held.cores_milli)}/{percent_text(device.cores_milli)}%" if cores else ""
        )
        shares = "" if device.slots is None else f"{held.slots}/{device.slots}"
        pieces.append((f" {percent:>{PERCENT}} {shares:>{SHARES}}", PLAIN))
        free = view.free_memory_bytes(entry)
        if layout.wide and free is not None:
            word = "unavailable" if unavailable(view, entry) else "free"
            maybe_held = maybe_held_text(view.maybe_held_of(entry))
            pieces.append((f"  {rounded_size(free)} {word}{maybe_held}", DIM))
        return pieces

    def _holding(self, holding: Holding) -> Iterator[Line]:
        layout, share = self.layout, holding.share
        name = self._name(holding.pod, holding.container)
        memory = (
            self.glyphs.none if share.memory_bytes is None else rounded_size(share.memory_bytes)
        )
        cores = self.glyphs.none if not share.cores_milli else f"{percent_text(share.cores_milli)}%"
        pieces: list[Piece] = [
            (f"    {name} {memory:>{AMOUNT}} ", PLAIN),
            (f"{holding.phase.value:<{layout.cores}}", _PHASES[holding.phase]),
            (f" {cores:>{PERCENT}} {self._age(holding.since):>{SHARES}}", PLAIN),
        ]
        if self.inventory.limits is not None:
            pieces.append(self._limit(holding))
        if layout.wide:
            sources = ", ".join(holding.sources)
            pieces.append((f"  {holding.scheme} {holding.pod.uid} ({sources})", DIM))
        yield pieces
        if holding.resource_claim_shares:
            yield [(f"      {self._resource_claim_names(holding)}", DIM)]
        yield from self._state(holding)

    def _limit(self, holding: Holding) -> Piece:
        """The column LIMIT."""
        reason = self.inventory.limit(holding.pod, holding.container)
        if reason is None:
            return f" {self.glyphs.none:<{LIMIT}}", DIM
        style = BAD if reason.state in UNCAPPED else PLAIN
        return f" {limit_word(reason.state):<{LIMIT}}", style

    def _resource_claim_names(self, holding: Holding) -> str:
        """The ResourceClaims of a holding; with the driver's names of unknown devices."""
        names = [part.resource_claim_device.name for part in holding.resource_claim_shares]
        if self.layout.wide or holding.share.device in ("", *names):
            parts = [
                f"{part.resource_claim_device.resource_claim} ({part.resource_claim_device.name})"
                for part in holding.resource_claim_shares
            ]
        else:
            parts = [
                part.resource_claim_device.resource_claim for part in holding.resource_claim_shares
            ]
        return f"ResourceClaim {', '.join(dict.fromkeys(parts))}"

    def _state(self, holding: Holding) -> Iterator[Line]:
        """A line about a pod that does not simply run."""
        state = self.inventory.state(holding.pod, holding.container)
        text = "" if state is None else state_text(state, self.as_of)
        if text:
            yield from self._wrapped(text, "      ", BAD if state and is_stuck(state) else DOUBTFUL)

    def _bar(self, width: int, held: int, assumed: int, total: int | None) -> Iterator[Piece]:
        """A bar: held, with the assumed part last, then free; red if more than all is held."""
        if not total:
            yield " " * width, PLAIN
            return
        filled = min(width, -(-held * width // total))
        doubtful = filled - min(filled, -(-(held - assumed) * width // total))
        style = BAD if held > total else GOOD
        yield self.glyphs.held * (filled - doubtful), style
        yield self.glyphs.assumed * doubtful, BAD if held > total else DOUBTFUL
        yield self.glyphs.free * (width - filled), DIM

    def _of(self, held: int | None, total: int | None) -> str:
        if held is None:
            return "?/?"
        if total is None:
            return f"{rounded_size(held)}/?"
        return (
            f"{held / GIB:.1f}/{rounded_size(total)}"
            if total >= GIB
            else f"{rounded_size(held)}/{rounded_size(total)}"
        )

    # ------------------------------------------------------------ pending, conflicts, capacity

    def _pending(self, pending: Sequence[Pending]) -> Iterator[Line]:
        if not pending:
            return
        yield [(f"Without a device: {len(pending)}", BOLD)]
        for equal in folded(pending, self._pending_likeness):
            names = [self.names.of(waiting.pod, waiting.container) for waiting in equal]
            more = "" if len(equal) == 1 else f"{len(equal)} times: "
            _, *facts = self._pending_likeness(equal[0])
            detail = facts.pop()
            ages = [each.since for each in equal if each.since is not None]
            pieces = (examples_text(names), *facts, self._age(min(ages, default=None)))
            yield [("  " + more + "  ".join(filter(None, pieces)), PLAIN)]
            yield from self._wrapped(detail, "      ", DOUBTFUL)
        yield []

    def _pending_likeness(self, waiting: Pending) -> tuple[str, str, str, str]:
        """What waiting containers have in common that differ in names and ages alone."""
        request = "" if waiting.request is None else wanted(waiting.request)
        node = f" on {waiting.node}" if waiting.node else ""
        device = f" ({self._on(waiting.device)})" if waiting.device else ""
        detail = f"{device}: {waiting.detail}" if waiting.detail else device
        text = f"{waiting.reason.explanation}{detail}"
        return waiting.reason, request, f"{self.inventory.system(waiting)}{node}", text

    def _conflicts(self, views: Iterable[NodeView]) -> Iterator[Line]:
        conflicts = [(view, conflict) for view in views for conflict in view.ledger.conflicts]
        if not conflicts:
            return
        yield [(f"Conflicts: {len(conflicts)}", BOLD)]
        for equal in folded(conflicts, _likeness):
            names = ["  ".join(self._about(view.node.name, conflict)) for view, conflict in equal]
            more = "" if len(equal) == 1 else f"{len(equal)} times: "
            yield from self._wrapped(f"{more}{examples_text(names)}", "  ", PLAIN)
            _, conflict = equal[0]
            detail = f": {conflict.detail}" if conflict.detail else ""
            text = f"{conflict.kind.explanation}{detail}{_parties(conflict)}"
            yield from self._wrapped(text, "      ", BAD)
        yield []

    def _about(self, node: str, conflict: Conflict) -> Iterator[str]:
        """The node, the GPU and the container of a conflict, as far as it has them."""
        yield node
        if conflict.device:
            yield self._on(conflict.device)
        if conflict.pod is not None:
            yield self.names.of(conflict.pod, conflict.container)

    def _free_capacities(self, capacities: Sequence[FreeCapacity]) -> Iterator[Line]:
        if not capacities:
            return
        yield [("Free capacity", BOLD)]
        for capacity in capacities:
            gpus = count(capacity.gpus, "GPU")
            available = rounded_size(capacity.available_bytes)
            free = f"{available} free of {rounded_size(capacity.memory_bytes)}"
            if capacity.unsized:
                free = _unsized_text(capacity, free)
            if not capacity.gpus:
                free = self._why_none(capacity)
            yield [(f"  {capacity.system:<10} {gpus}, {free}", PLAIN)]
            maybe_held = maybe_held_text(capacity.maybe_held).removeprefix(", ")
            if maybe_held:
                yield from self._wrapped(maybe_held, " " * 13, DOUBTFUL)
            for apart in capacity.apart:
                yield from self._wrapped(apart_text(apart), " " * 13, DOUBTFUL)
            if capacity.kept_bytes:
                text = f"{rounded_size(capacity.kept_bytes)} {KEPT_FREE}"
                yield from self._wrapped(text, " " * 13, DOUBTFUL)
            yield from self._wrapped(fitting(capacity), " " * 13, PLAIN)
            for closed in capacity.closed:
                nodes = f"{count(len(closed.names), 'node')} ({examples_text(closed.names)})"
                text = f"no such pod fits on {nodes}: {closed.why.text}"
                yield from self._wrapped(text, " " * 13, DOUBTFUL)
        yield []

    def _why_none(self, capacity: FreeCapacity) -> str:
        """Why no GPU counts for a system that a pod waits for."""
        unread = sorted(
            view.node.name
            for view in self.inventory.nodes
            if capacity.system in view.systems
            and view.placement.closed is PlacementReason.UNREADABLE
            and not view.full_ledger.devices
        )
        if unread:
            return f"since the register cannot be read of {examples_text(unread)}"
        return "since its GPUs count for another system of their nodes"

    # ------------------------------------------------------------ text

    def _wrapped(self, text: str, indent: str, style: Style) -> Iterator[Line]:
        for line in textwrap.wrap(
            " ".join(text.split()),
            self.text_width,
            initial_indent=indent,
            subsequent_indent=indent or "  ",
        ):
            yield [(line, style)]

    def _cut(self, text: str, width: int, tail: int) -> str:
        """The text in ``width`` columns; a longer text keeps its last ``tail`` characters.

        Names of pods differ at their end.
        """
        if len(text) <= width:
            return f"{text:<{width}}"
        return text[: width - tail - 1] + self.glyphs.cut + text[len(text) - tail :]

    def _name(self, pod: PodRef, container: str) -> str:
        """A container's name in the width of its column."""
        width = self.layout.pod
        return self._cut(self.names.of(pod, container), width, width // 2)

    def _on(self, device: str) -> str:
        name = device if self.layout.wide else device[:UUID]
        return name if name.startswith("GPU-") else f"GPU {name}"

    def _age(self, since: float | None) -> str:
        return "" if since is None else age(self.as_of - since)


def _shares_cores(view: NodeView) -> bool:
    """Whether cores are shared, and not only memory."""
    rows = [registry().of(scheme) for scheme in view.schemes]
    return not rows or any(row is None or row.shares_cores for row in rows)


_MOST_PARTIES: Final = 4


def _likeness(found: tuple[NodeView, Conflict]) -> tuple[str, ...]:
    """What conflicts have in common that differ in their objects alone."""
    view, conflict = found
    pods = [each.pod for each in conflict.statements]
    pods += [] if conflict.pod is None else [conflict.pod]
    names = [name for pod in pods for name in (f"{pod.namespace}/{pod.name}", pod.name, pod.uid)]
    text = f"{conflict.detail}{_parties(conflict)}"
    return conflict.kind, masked(text, *names, view.node.name, conflict.device)


def _parties(conflict: Conflict) -> str:
    """The containers of a conflict of several, as text."""
    if conflict.pod is not None or not conflict.statements:
        return ""
    names = [who(statement.pod, statement.container) for statement in conflict.statements]
    more = f" and {len(names) - _MOST_PARTIES} more" if len(names) > _MOST_PARTIES else ""
    return f" (by {', '.join(names[:_MOST_PARTIES])}{more})"


def _summary(inventory: Inventory, as_of: float) -> str:
    holders = {holding.pod.uid for view in inventory.nodes for holding in view.ledger.holdings}
    nvidias = {holder.pod.uid for devices in inventory.nvidia for holder in devices.holders}
    conflicts = sum(len(view.ledger.conflicts) for view in inventory.nodes)
    gpus = sum(len(view.ledger.devices) for view in inventory.nodes)
    parts = (
        (len(inventory.nodes), "node"),
        (gpus, "GPU"),
        (len(holders), "pod with devices"),
        (len(inventory.pending), "without"),
        (conflicts, "conflict"),
    )
    counts = ", ".join(
        f"{number} {noun}" if noun == "without" else count(number, noun) for number, noun in parts
    )
    if nvidias:
        counts += f", {count(len(nvidias), 'pod')} of NVIDIA's plugin"
    if inventory.others:
        counts += f", {count(len(inventory.others), 'pod')} of other GPU schedulers"
    when = datetime.fromtimestamp(as_of, UTC)
    return f"{counts}, as of {when:%Y-%m-%d %H:%M:%S} UTC"


def _known_bytes(entry: DeviceEntry) -> int | None:
    """What is held of a GPU; None if neither its size nor that of a share is known."""
    is_unknown = entry.device.memory_bytes is None and any(
        holding.share.memory_bytes is None for holding in entry.holdings
    )
    return None if is_unknown else entry.held.memory_bytes


def _unsized_text(capacity: FreeCapacity, free: str) -> str:
    """The free memory of the GPUs whose sizes are known, and how many others there are."""
    if capacity.unsized == capacity.gpus:
        return "of unknown memory"
    return f"{free}; the memory of {count(capacity.unsized, 'GPU')} is unknown"
