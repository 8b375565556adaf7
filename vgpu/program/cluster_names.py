"""Completion of the names of the cluster's objects: what a shell offers at Tab.

The names are those of the cluster that the typed flags or the kubeconfig name. Where it does not
answer within a moment, nothing is offered and nothing is printed.
"""

from collections.abc import Iterator
from typing import Any, Final

import click

from vgpu.program.kube_flags import connected

MOMENT_SECONDS: Final = 2.0
"""Maximum time to wait for an answer, in seconds: a person waits at the prompt."""

MOST: Final = 500
"""Maximum number of objects that are asked for."""


def nodes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The nodes."""
    return [name for _, name in _begun(_names(ctx, "Node"), incomplete)]


def namespaces(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The Namespaces."""
    return [name for _, name in _begun(_names(ctx, "Namespace"), incomplete)]


def gpus(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The nodes, each with the slash before the GPU."""
    return [f"{name}/" for name in nodes(ctx, parameter, incomplete)]


def pods(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """NAMESPACE/NAME of pods; the Namespaces alone as long as several begin so."""
    namespace, slash, _ = incomplete.partition("/")
    if not slash:
        begun = namespaces(ctx, parameter, namespace)
        if len(begun) != 1:
            return [f"{name}/" for name in begun]
        (namespace,) = begun
    names = (f"{namespace}/{name}" for _, name in _names(ctx, "Pod", namespace))
    return [name for name in names if name.startswith(incomplete)]


def _begun(names: list[tuple[str, str]], start: str) -> Iterator[tuple[str, str]]:
    return (each for each in names if each[1].startswith(start))


def _names(ctx: click.Context, kind_name: str, namespace: str = "") -> list[tuple[str, str]]:
    """Namespace and name of the objects; none if they cannot be read."""
    from vgpu.kube import wire  # noqa: PLC0415  # slow to import
    from vgpu.kube.api_kind import Decoders  # noqa: PLC0415  # slow to import
    from vgpu.kube.kinds import KINDS  # noqa: PLC0415  # slow to import

    class Named(wire.ObjectFields, frozen=True):
        metadata: wire.Meta

    def project(fields: Any, _: str) -> tuple[str, str]:
        return fields.metadata.namespace, fields.metadata.name

    (kind,) = (kind for kind in KINDS if kind.name == kind_name)
    try:
        flags = (ctx.params.get("kubeconfig") or "", ctx.params.get("context") or "")
        with connected(*flags, MOMENT_SECONDS) as cluster:
            named = kind.read_as(Decoders.of(Named), project)
            return sorted(next(cluster.pages(named, limit=MOST, namespace=namespace)).objects)
    except click.ClickException:
        return []
