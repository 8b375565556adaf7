"""The devices of a node's containers by what no tenant can write.

A region names its devices itself, and its tenant can write every UUID there. So a container counts
only on devices that the kubelet's checkpoint, or that of our own device plugin, has for it: with a
forged region a tenant can hold nobody back on a GPU that it does not have.
"""

from collections.abc import Iterable, Mapping

from vgpu.ledger.from_kubelet import by_container, visible_devices
from vgpu.ledger.statements import Statement
from vgpu.model.facts import Grant
from vgpu.model.reasons import SourceError
from vgpu.sources.kubelet import KubeletCheckpointFile
from vgpu.sources.own_checkpoint import OwnCheckpointSource

Container = tuple[str, str]
"""A pod's UID and the name of its container."""

VERIFY_SECONDS = 300.0
"""Minimum interval between two verifications of the kubelet's checkpoint, in seconds."""


def confirmed_devices(
    grants: Iterable[Grant], own: Iterable[Statement]
) -> dict[Container, frozenset[str]]:
    """UUIDs by container: those in the plugins' answers, and those that our plugins have bound."""
    devices: dict[Container, frozenset[str]] = {}
    for container, by_resource in by_container(grants).items():
        env = {name: text for grant in by_resource.values() for name, text in grant.env.items()}
        devices[container] = frozenset(visible_devices(env))
    for statement in own:
        container = statement.pod.uid, statement.container
        shares = frozenset(share.device for share in statement.shares if share.device)
        devices[container] = devices.get(container, frozenset()) | shares
    return devices


class ConfirmedDevices:
    """Reads both checkpoints. One thread uses it.

    The devices of a container stay the same while its pod lives. So what was read last stays valid
    while a checkpoint cannot be read.
    """

    def __init__(self, checkpoint: str, state_dir: str, procfs: str) -> None:
        self._kubelet = KubeletCheckpointFile(checkpoint, VERIFY_SECONDS)
        self._own = OwnCheckpointSource(state_dir, procfs)
        self._grants: tuple[Grant, ...] = ()
        self._statements: tuple[Statement, ...] = ()
        self.problem = ""
        """Why a checkpoint could not be read by the last call; "" if both could be."""

    def read(self, now: float) -> Mapping[Container, frozenset[str]]:
        """The devices by container; ``now`` is unix seconds."""
        problems = []
        try:
            self._grants = self._kubelet.get(now)[0]
        except SourceError as error:
            problems.append(str(error))
        try:
            self._statements = self._own.sample(now).statements
        except SourceError as error:
            problems.append(str(error))
        self.problem = "; ".join(problems)
        return confirmed_devices(self._grants, self._statements)
