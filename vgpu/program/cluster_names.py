"""Completion of the names of the cluster's objects: what a shell offers at Tab.

The names are those in the files of --from, or those of the cluster that the typed flags or the
kubeconfig name. Where they cannot be read, or a cluster does not answer within a moment, nothing is
offered and nothing is printed.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from vgpu.model.reasons import SourceError
from vgpu.program.kube_flags import connected, read_dump

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
    files = _dumps(ctx)
    try:
        if files:
            names = {each for each in _dumped_names(files, kind_name) if namespace in ("", each[0])}
        else:
            names = _served_names(ctx, kind_name, namespace)
    except (click.ClickException, SourceError):
        return []
    return sorted(names)


def _dumps(ctx: click.Context) -> tuple[str, ...]:
    """The files of --from; standard input is not read."""
    flags = [option.name or "" for option in ctx.command.params if "--from" in option.opts]
    value = ctx.params.get(flags[0]) if flags else None
    files = (value,) if isinstance(value, str) else value or ()
    return tuple(file for file in files if file not in ("", "-"))


def _dumped_names(files: Sequence[str], kind_name: str) -> Iterator[tuple[str, str]]:
    """The names in dumps; Namespaces also by their objects. Raises as :func:`items_of`."""
    from vgpu.kube.dump import items_of  # noqa: PLC0415  # slow to import

    for path in files:
        content, _ = read_dump(path)
        for kind, about, _ in items_of(content, path):
            if kind == kind_name:
                yield about.metadata.namespace, about.metadata.name
            elif kind_name == "Namespace" and about.metadata.namespace:
                yield "", about.metadata.namespace


def _served_names(ctx: click.Context, kind_name: str, namespace: str) -> set[tuple[str, str]]:
    """The names at the API server. Raises click.ClickException."""
    from vgpu.kube import wire  # noqa: PLC0415  # slow to import
    from vgpu.kube.api_kind import Decoders  # noqa: PLC0415  # slow to import
    from vgpu.kube.kinds import KINDS  # noqa: PLC0415  # slow to import

    class Named(wire.ObjectFields, frozen=True):
        metadata: wire.Meta

    def project(fields: Any, _: str) -> tuple[str, str]:
        return fields.metadata.namespace, fields.metadata.name

    (kind,) = (kind for kind in KINDS if kind.name == kind_name)
    flags = (ctx.params.get("kubeconfig") or "", ctx.params.get("context") or "")
    with connected(*flags, MOMENT_SECONDS) as cluster:
        named = kind.read_as(Decoders.of(Named), project)
        return set(next(cluster.pages(named, limit=MOST, namespace=namespace)).objects)
