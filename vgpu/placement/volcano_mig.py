"""Which MIG slot of a GPU Volcano allocates: a GPU is cut after one of its model's geometries.

Only the names of the slots in use show how a GPU is cut. A slot is named by its geometry
and its position there, counted through the geometry's instances in their order.
"""

import msgspec


class Instance(msgspec.Struct, frozen=True):
    """MIG instances of one profile (``1g.10gb``); ``memory_bytes`` is of each of ``count``."""

    profile: str
    memory_bytes: int
    count: int


class Geometry(msgspec.Struct, frozen=True):
    """One way to cut a GPU: instances that are there together (``allowedGeometries``)."""

    group: str
    instances: tuple[Instance, ...]


class MigSlot(msgspec.Struct, frozen=True):
    """One instance of a cut GPU; ``profile`` and ``memory_bytes`` are those of its geometry."""

    group: str
    position: int
    profile: str
    memory_bytes: int


def slots(geometry: Geometry) -> tuple[MigSlot, ...]:
    """All of a geometry's slots, by position."""
    instances = [one for one in geometry.instances for _ in range(one.count)]
    return tuple(
        MigSlot(geometry.group, position, one.profile, one.memory_bytes)
        for position, one in enumerate(instances)
    )


def choose(
    geometries: tuple[Geometry, ...], used: frozenset[tuple[str, int]], memory_bytes: int
) -> MigSlot | None:
    """The smallest free slot with that much memory; None if there is none.

    A GPU in use stays cut as it is, an empty one is cut after the first geometry that has such a
    slot. ``used`` has group and position of the slots in use. (Volcano itself never allocates an
    unused profile of a GPU that is in use: that is a defect of its own.)
    """
    cut = {group for group, _ in used}
    for geometry in geometries:
        if not cut or geometry.group in cut:
            fitting = [
                slot
                for slot in slots(geometry)
                if slot.memory_bytes >= memory_bytes and (slot.group, slot.position) not in used
            ]
            if fitting:
                return min(fitting, key=lambda slot: (slot.memory_bytes, slot.position))
    return None
