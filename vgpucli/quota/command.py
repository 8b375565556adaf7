"""`vgpu quota`: quotas of shared GPUs in Kubernetes' own form."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

import click

from vgpu.inventory import Units, detect_schemes
from vgpu.model.document_text import yaml_text
from vgpu.model.documentation import page
from vgpu.model.printable_text import printable
from vgpu.model.units import count
from vgpu.program import cluster_names
from vgpu.program.groups import FlagsFirstGroup
from vgpu.program.kube_flags import connected, kubeconfig_flags, reads_dumps
from vgpu.program.output import say_text
from vgpu.program.resource_flags import resource_flags
from vgpu.quota.limits import cluster_quotas
from vgpu.schemes.registry import registry
from vgpucli.flags import unit_flags
from vgpucli.inspect.read import Read, from_cluster, from_files, with_quotas
from vgpucli.quota.manifests import Manifest, NativeQuota, native_quota, over_quota_policy

EPILOG = f"""\
\b
Examples:
  vgpu quota manifests > quotas.yaml            look at it, then kubectl apply -f quotas.yaml
  vgpu quota manifests -n team-a --no-policy
  kubectl get nodes,pods,namespaces,resourcequotas,configmaps -A -o json |
    vgpu quota manifests --from -

\b
What Kubernetes cannot count stands as a comment above each object: {page("quotas")}.
"""


@click.group("quota", cls=FlagsFirstGroup, epilog="Example: vgpu quota manifests > quotas.yaml")
def command() -> None:
    """Quotas of shared GPUs by namespace."""


@command.command("manifests", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.option(
    "--from",
    "files",
    multiple=True,
    metavar="FILE",
    help="Read 'kubectl get nodes,pods,namespaces,resourcequotas -A -o json' from a file, or from -"
    " for standard input, and ask no API server. Repeatable.",
)
@kubeconfig_flags
@unit_flags
@resource_flags
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    shell_complete=cluster_names.namespaces,
    help="Only quotas of this one. Repeatable.",
)
@click.option(
    "--policy/--no-policy",
    "has_policy",
    default=True,
    show_default=True,
    help="Print the policy that refuses pods with GPUs in Namespaces with the mark"
    " vgpu.dev/over-quota, which 'vgpu reconcile' sets by rule quota_mark.",
)
def manifests(
    *,
    files: tuple[str, ...],
    kubeconfig: str,
    context: str,
    request_timeout: float | None,
    volcano_factor: int,
    gpushare_unit: int | None,
    namespaces: tuple[str, ...],
    has_policy: bool,
) -> None:
    """Print manifests by which Kubernetes enforces the declared quotas without an extender.

    ResourceQuotas for what annotations of Namespaces and HAMi's entries limit, and a
    ValidatingAdmissionPolicy. Nothing is changed in the cluster.
    """
    if reads_dumps(files):
        read = from_files(files)
    else:
        with connected(kubeconfig, context, request_timeout) as cluster:
            read = with_quotas(from_cluster(cluster, ""), cluster)
    units = Units(volcano_factor, gpushare_unit)
    text = "\n".join(_lines(read, units, namespaces, has_policy=has_policy))
    say_text(f"{text}\n")


def _lines(
    read: Read, units: Units, namespaces: Sequence[str], *, has_policy: bool
) -> Iterator[str]:
    schemes = detect_schemes(read.objects, units)
    systems = [registry().row(codec).name for codec in schemes.codecs]
    declared = cluster_quotas(read.namespaces, read.quotas, read.gpu_quota)
    quotas = [
        native_quota(quota, systems, schemes.unit_bytes)
        for name, quota in declared.items()
        if not namespaces or name in namespaces
    ]
    proposed = [quota for quota in quotas if quota.hard or quota.remarks]
    number = count(len(proposed), "namespace")
    yield f"# {number} with a quota that Kubernetes does not count itself"
    for note in (*read.notes, *schemes.notes):
        yield from comment_lines(f"note: {note}")
    for quota in proposed:
        yield from _native_lines(quota)
    if has_policy:
        yield "---"
        yield from comment_lines(
            "Refuses pods with GPUs in Namespaces with the mark vgpu.dev/over-quota, which rule"
            " quota_mark of vgpu reconcile sets. A policy sees one pod and cannot sum."
        )
        policy, binding = over_quota_policy()
        yield _yaml(policy)
        yield "---"
        yield _yaml(binding)


def _native_lines(quota: NativeQuota) -> Iterator[str]:
    if quota.hard:
        yield "---"
    for remark in quota.remarks:
        yield from comment_lines(f"{quota.namespace}: {remark}")
    if quota.hard:
        yield _yaml(quota.manifest)


_COMMENT: Final = 78
"""Maximum length of a comment's text, in characters: the file is the same on every terminal."""


def comment_lines(text: str) -> Iterator[str]:
    """The text as comments: it may have line breaks of a tenant."""
    for line in text.splitlines():
        for part in textwrap.wrap(printable(line), _COMMENT, break_on_hyphens=False):
            yield f"# {part}"


def _yaml(manifest: Manifest) -> str:
    return yaml_text(manifest).rstrip("\n")
