"""The interfaces between the plugin's parts, from the kubelet to the container."""

from collections.abc import Collection, Mapping
from typing import Protocol

from deviceplugin.model import AdmittedPod
from vgpu.schemes.codec import ContainerEdits


class Allocator(Protocol):
    """Answers the kubelet; many threads may call it."""

    def allocate(self, resource: str, ids: frozenset[str]) -> tuple[str, ContainerEdits]:
        """The name and the edits of the answer for one container. Raises BindRefused.

        The name is "", and the edits are empty, if the resource is not the binding one.
        """
        ...

    def prestart(self, resource: str, ids: frozenset[str]) -> None:
        """Return when the container with these IDs may start. Raises BindRefused."""
        ...


class Injector(Protocol):
    """How a container gets its share, under the fresh name of the answer."""

    @property
    def guesses(self) -> bool:
        """Whether :meth:`response` depends on the container's pod: there is no CDI."""
        ...

    def response(
        self, name: str, edits: ContainerEdits, late_env: Mapping[str, str]
    ) -> ContainerEdits:
        """The edits in Allocate's answer: only the part of ``edits`` that cannot come later.

        Equal for all containers, without a look at ``edits``, unless :attr:`guesses`.
        """
        ...

    def write(self, name: str, edits: ContainerEdits, late_env: Mapping[str, str]) -> None:
        """Write the rest, so that the container can be made. Raises OSError.

        Writing a name again with the same edits changes nothing.
        """
        ...

    def written(self) -> frozenset[str]:
        """The names that have been written since the node started. Raises OSError."""
        ...

    def is_whole(self, name: str) -> bool:
        """Whether the name's files are there and unchanged; damaged ones count as lost."""
        ...

    def prune(self, names: Collection[str]) -> None:
        """Remove the files of all other names, of this boot and older ones."""
        ...


class SchemeServices(Protocol):
    """A scheme's services besides the injector: gpu-manager's sockets, limits and driver."""

    def start(self) -> None:
        """Start."""
        ...

    def serve(self, admitted_pod: AdmittedPod) -> None:
        """Serve a pod that was admitted before. Raises OSError."""
        ...

    def prune(self, uids: Collection[str]) -> None:
        """Forget all pods but these, before any new one is served. Raises OSError."""
        ...

    def bound(self, admitted_pod: AdmittedPod) -> None:
        """Serve a pod of which a container is about to be created. Raises OSError."""
        ...

    def stop_serving(self, uid: str) -> None:
        """Stop serving the pod. Raises OSError."""
        ...

    def stop(self) -> None:
        """Stop."""
        ...
