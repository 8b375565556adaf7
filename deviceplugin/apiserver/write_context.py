"""The context that the writers of pods, node and ConfigMap share."""

from collections.abc import Callable

import msgspec

from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.own_writes import OwnWrites
from deviceplugin.apiserver.writes import DueTime
from deviceplugin.failpoints import Failpoint
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.apiserver.client import ApiClient
from vgpu.model.objects import Node


class WriteContext(msgspec.Struct, frozen=True):
    """The API server, and what is to be written to it.

    Attributes:
        cluster: the API server.
        adapter: the scheme's.
        read_state: returns the desired state, None while it is not known.
        failpoint: called after each write.
        clock: returns unix seconds.
        monotonic: returns seconds that never go back.
        own_writes: objects that the watch does not show yet.
        due: when a write may be due again.
    """

    cluster: ApiClient
    adapter: SchemeAdapter
    read_state: Callable[[], DesiredState | None]
    failpoint: Failpoint
    clock: Callable[[], float]
    monotonic: Callable[[], float]
    own_writes: OwnWrites
    due: DueTime

    def desired(self) -> DesiredState | None:
        """The desired state over the objects as our own writes have left them."""
        state = self.read_state()
        return None if state is None else self.own_writes.over(state)

    def desired_of_node(self) -> tuple[DesiredState, Node] | None:
        """The desired state with the node's object; None while either is not known."""
        state = self.desired()
        return None if state is None or state.node is None else (state, state.node)
