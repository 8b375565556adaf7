"""Objects as our own writes have left them, until the watch shows the writes."""

import msgspec
from msgspec.structs import replace

from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.writes import WriteKey, WriteTarget
from vgpu.model.objects import Node, Pod


class _Newer(msgspec.Struct, frozen=True):
    """An object after our write, kept until the watch shows a version other than those before."""

    before: frozenset[str]
    now: Pod | Node


class OwnWrites:
    """Used by the status manager's thread alone."""

    def __init__(self) -> None:
        self._newer: dict[WriteKey, _Newer] = {}

    def over(self, desired: DesiredState) -> DesiredState:
        """The desired state with the objects of our writes where the watch is behind them."""
        pods = dict(desired.pods)
        for key in [key for key in self._newer if key.target is WriteTarget.POD]:
            newer = self._ahead(key, pods.get(key.uid))
            if isinstance(newer, Pod):
                pods[key.uid] = newer
        node = self._ahead(WriteKey(WriteTarget.NODE), desired.node)
        return replace(desired, pods=pods, node=node if isinstance(node, Node) else None)

    def add(self, key: WriteKey, seen: Pod | Node, written: Pod | Node) -> None:
        """The object was ``seen``, and is now as it was ``written``."""
        known = self._newer.get(key)
        before = known.before if known else frozenset()
        if written.resource_version != seen.resource_version:
            self._newer[key] = _Newer(before | {seen.resource_version}, written)

    def _ahead(self, key: WriteKey, seen: Pod | Node | None) -> Pod | Node | None:
        newer = self._newer.get(key)
        if newer is None:
            return seen
        if seen is not None and seen.resource_version in newer.before:
            return newer.now
        del self._newer[key]
        return seen
