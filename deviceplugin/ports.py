"""What the parts of the plugin are to one another, from the kubelet to the container."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from deviceplugin.model import AdmittedPod
from vgpu.schemes.codec import ContainerEdits


class Allocator(Protocol):
    """Answers the kubelet; safe to be asked from many threads."""

    def allocate(self, resource: str, ids: frozenset[str]) -> tuple[str, ContainerEdits]:
        """The name and what is answered now for one container. Raises Refused.

        The name is "", and the edits are empty, where the resource is not the binding one.
        """
        ...

    def prestart(self, resource: str, ids: frozenset[str]) -> None:
        """Return when the container that was given these IDs may start. Raises Refused."""
        ...


class Injector(Protocol):
    """How a container gets what it is bound to, under the fresh name of the answer."""

    @property
    def guesses(self) -> bool:
        """Whether :meth:`early` depends on whose container it is: there is no CDI."""
        ...

    def response(
        self, name: str, edits: ContainerEdits, late_env: Mapping[str, str]
    ) -> ContainerEdits:
        """What Allocate answers with; of ``edits`` only as much as cannot come later.

        The same for all containers, and ``edits`` are not looked at, unless :attr:`guesses`.
        """
        ...

    def write(self, name: str, edits: ContainerEdits, late_env: Mapping[str, str]) -> None:
        """Give the rest, so that the container can be made. Raises OSError.

        Writing a name again gives the same; what is there already is not touched then.
        """
        ...

    def written(self) -> frozenset[str]:
        """The names that have been written since the node started. Raises OSError."""
        ...

    def is_whole(self, name: str) -> bool:
        """Whether what was written is there as it was written; what is damaged is lost."""
        ...

    def prune(self, names: Collection[str]) -> None:
        """Remove what was written under other names, of this boot and older ones."""
        ...


class CheckpointStore(Protocol):
    """The own checkpoint."""

    def save(self, tenants: Iterable[AdmittedPod]) -> None:
        """Make it durable. Raises OSError; what was there before then still is."""
        ...

    def is_whole(self) -> bool:
        """Whether what was saved last is there as it was; no more than a glance."""
        ...


class SchemeServices(Protocol):
    """What a scheme serves beside the injector: gpu-manager's sockets, limits and driver."""

    def start(self) -> None:
        """Begin."""
        ...

    def seat(self, tenant: AdmittedPod) -> None:
        """Serve a tenant that was there before. Raises OSError."""
        ...

    def prune(self, uids: Collection[str]) -> None:
        """Forget all pods but these, before any new one is served. Raises OSError."""
        ...

    def bound(self, tenant: AdmittedPod) -> None:
        """Serve a tenant of which a container is about to be made. Raises OSError."""
        ...

    def left(self, uid: str) -> None:
        """Serve it no more. Raises OSError."""
        ...

    def stop(self) -> None:
        """End."""
        ...
