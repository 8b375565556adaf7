"""`vgpu explain`: why a pod does not run, and the state of a node or a GPU, in steps."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
import msgspec
from click.shell_completion import CompletionItem

from vgpu.model.documentation import page
from vgpu.program import cluster_names
from vgpu.program.exporter_pod import page_lines
from vgpu.program.groups import FlagsFirstGroup
from vgpu.program.kube_flags import connected, kubeconfig_flags, reads_dumps
from vgpu.program.output import say, say_wrapped
from vgpu.program.resource_flags import resource_flags
from vgpucli.document_output import print_document
from vgpucli.flags import ACCESS, unit_flags
from vgpucli.measure_flags import measure_flags, measuring

EPILOG: Final = f"""\
\b
Examples:
  vgpu explain pod team-a/train-0         or without the word pod
  vgpu explain pod team-a/train-0 --prometheus http://localhost:9090
  vgpu explain node gpu-7
  vgpu explain gpu gpu-7/0
  kubectl get nodes,pods,namespaces,resourcequotas,configmaps -A -o json > dump.json
  vgpu explain pod team-a/train-0 --from dump.json -o json | jq .conclusion

\b
Each step is passed, failed or waiting. Steps and JSON document:
{page("explain")}.

\b
Status: 0 if the object was explained, whatever its state; 1 if it could not be read; 2 for wrong
flags.
"""

_SETTINGS: Final = {"max_content_width": 100}


def _flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of all three commands."""
    options = (
        unit_flags,
        resource_flags,
        click.option(
            "-o",
            "--output",
            type=click.Choice(("text", "json")),
            default="text",
            show_default=True,
            help="Form of the output.",
        ),
        kubeconfig_flags,
        click.option(
            "--from",
            "files",
            multiple=True,
            metavar="FILE",
            help="Read 'kubectl get nodes,pods,… -A -o json' from a file, or from - for standard"
            " input, and ask no API server. Repeatable.",
        ),
    )
    for option in options:
        command = option(command)
    return command


class _ExplainGroup(FlagsFirstGroup):
    """`explain team-a/train-0` is `explain pod team-a/train-0`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; what has a slash is a pod."""
        is_pod = args[0] not in self.commands and "/" in args[0]
        return super().resolve_command(ctx, ["pod", *args] if is_pod else args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and, where none of them begins so, the pods."""
        items = super().shell_complete(ctx, incomplete)
        if items or not incomplete or incomplete.startswith("-"):
            return items
        with self.context_of(ctx, "pod") as own:
            (name,) = (each for each in own.command.params if each.name == "name")
            return name.shell_complete(own, incomplete)


@click.group("explain", cls=_ExplainGroup, epilog=EPILOG, context_settings=_SETTINGS)
def command() -> None:
    """Explain in steps why a pod does not run, or the state of a node or a GPU.

    The reasons are those of the scheduler extender and of the reconciler, from the API server or
    from a dump of it.
    """


@command.command("pod", context_settings=_SETTINGS)
@click.argument("name", metavar="NAMESPACE/NAME", shell_complete=cluster_names.pods)
@measure_flags("What the pod uses,")
@_flags
def explain_pod_command(*, name: str, **flags: Any) -> None:
    """Explain the way of a pod: request, quota, nodes, reservation, kubelet, plugin, use."""
    from vgpucli.explain.pod import (  # noqa: PLC0415  # slow
        explain_pod,
        explain_unreadable_pod,
        with_use,
    )

    measure = measuring(
        flags["prometheus"],
        flags["exporters"],
        {each: flags[each] for each in ACCESS},
        limits=True,
    )
    namespace, pod_name = _namespaced(name)
    evidence = _evidence(flags, lambda read, cluster: read.for_pod(cluster, namespace, pod_name))
    pod = evidence.pod(namespace, pod_name)
    if pod is not None:
        explanation = explain_pod(evidence.of_pod(pod))
        notes: tuple[str, ...] = ()
        if measure is not None:
            measured = measure(pod.kubelet_uid)
            explanation = with_use(explanation, measured.pods.get(pod.kubelet_uid))
            notes = measured.notes
        _print(evidence, explanation, flags["output"], notes)
        return
    malformed = evidence.malformed_pod(namespace, pod_name)
    if malformed is None:
        from vgpu.program.resource_names import unnamed_notes  # noqa: PLC0415  # slow to import

        if notes := unnamed_notes():
            raise click.ClickException(f"no pod {name} is known to share GPUs: {notes[0]}")
        raise _missing(f"no pod {name} that shares GPUs", name, evidence.pod_names)
    _print(evidence, explain_unreadable_pod(malformed, evidence.now), flags["output"])


@command.command("workload", context_settings=_SETTINGS)
@click.argument("name", metavar="NAMESPACE/NAME")
@_flags
def explain_workload_command(*, name: str, **flags: Any) -> None:
    """Explain why a workload of Kueue waits: its queue, the limit and its level.

    NAME is that of the Workload, or of the job that it stands for. A job that waits is suspended
    and has no pods.
    """
    from vgpucli.explain.queue_step import explain_workload  # noqa: PLC0415  # slow to import

    namespace, own_name = _namespaced(name)
    evidence = _evidence(flags, lambda read, cluster: read.for_workload(cluster, namespace))
    workload = evidence.workload(namespace, own_name)
    if workload is None:
        raise _missing_workload(name, evidence)
    answer = evidence.queue_answer(workload)
    shown = f"{workload.namespace}/{workload.name}"
    _print(evidence, explain_workload(shown, answer, evidence.now), flags["output"])


@command.command("node", context_settings=_SETTINGS)
@click.argument("name", metavar="NODE", shell_complete=cluster_names.nodes)
@_flags
def explain_node_command(*, name: str, **flags: Any) -> None:
    """Explain whether a node takes pods: GPUs, device plugin, lock, allocation records."""
    from vgpucli.explain.node import explain_node, explain_unreadable_node  # noqa: PLC0415  # slow

    evidence = _evidence(flags, lambda read, cluster: read.for_node(cluster, name))
    node = evidence.node(name)
    if node is not None:
        _print(evidence, explain_node(evidence.of_node(node)), flags["output"])
        if flags["output"] == "text":
            for line in page_lines(node.name):
                (say if line.startswith(" ") else say_wrapped)(line)
        return
    malformed = evidence.malformed_node(name)
    if malformed is None:
        raise _missing_node(name, evidence)
    _print(evidence, explain_unreadable_node(malformed, evidence.now), flags["output"])


@command.command("gpu", context_settings=_SETTINGS)
@click.argument("name", metavar="NODE/GPU", shell_complete=cluster_names.gpus)
@_flags
def explain_gpu_command(*, name: str, **flags: Any) -> None:
    """Explain whether a GPU takes shares, and who holds it.

    GPU is the index, the UUID, or the beginning of the UUID, also without GPU- before it.
    """
    from vgpucli.explain.node import explain_gpu, gpu_entry  # noqa: PLC0415  # slow

    node_name, slash, gpu = name.partition("/")
    if not (node_name and slash and gpu):
        raise click.BadParameter(
            f"{name!r} is not NODE/GPU, such as gpu-7/0", param_hint="NODE/GPU"
        )
    evidence = _evidence(flags, lambda read, cluster: read.for_node(cluster, node_name))
    node = evidence.node(node_name)
    if node is None:
        raise _missing_node(node_name, evidence)
    of_node = evidence.of_node(node)
    entry = gpu_entry(of_node, gpu)
    if entry is None:
        known = ", ".join(each.device.name for each in of_node.ledger.devices) or "none"
        raise click.ClickException(f"node {node_name} has no single GPU {gpu!r}. It has: {known}")
    _print(evidence, explain_gpu(of_node, entry), flags["output"])


# ---------------------------------------------------------------- parts


def _namespaced(name: str) -> tuple[str, str]:
    """The namespace and the name. Raises click.BadParameter."""
    namespace, slash, own_name = name.partition("/")
    if not (namespace and slash and own_name) or "/" in own_name:
        raise click.BadParameter(
            f"{name!r} is not NAMESPACE/NAME, such as default/{name.strip('/') or 'train-0'}",
            param_hint="NAMESPACE/NAME",
        )
    return namespace, own_name


def _evidence(flags: dict[str, Any], ask: Callable[[Any, Any], Any]) -> Any:
    """The evidence of the dumps, or of what ``ask`` reads from the API server.

    Raises click.ClickException and click.UsageError.
    """
    from vgpu.inventory import Units  # noqa: PLC0415  # slow to import
    from vgpucli.explain import read  # noqa: PLC0415  # slow to import
    from vgpucli.explain.evidence import ClusterEvidence  # noqa: PLC0415  # slow to import

    files = flags["files"]
    units = Units(flags["volcano_factor"], flags["gpushare_unit"])
    if reads_dumps(files):
        return ClusterEvidence(read.dumped(files), units)
    with connected(flags["kubeconfig"], flags["context"], flags["request_timeout"]) as cluster:
        objects = ask(read, cluster)
    return ClusterEvidence(objects, units)


def _print(evidence: Any, explanation: Any, output: str, notes: Iterable[str] = ()) -> None:
    cluster = evidence.read
    all_notes = (*cluster.notes, *evidence.schemes.notes, *cluster.kueue.notes, *notes)
    explanation = msgspec.structs.replace(explanation, notes=all_notes)
    if output == "json":
        from vgpucli.explain.document import document  # noqa: PLC0415  # only for JSON

        print_document(document(explanation), "json")
        return
    from vgpu.program.terminal import standard_output  # noqa: PLC0415
    from vgpucli.explain.table import show  # noqa: PLC0415  # only this output needs it

    show(standard_output(), explanation)


def _missing_node(name: str, evidence: Any) -> click.ClickException:
    """The error for a node that does not exist, or does not any more while it still has pods."""
    from vgpu.model.units import count_more  # noqa: PLC0415  # only where it is needed

    pods: list[str] = evidence.pods_bound_to(name)
    if not pods:
        return _missing(f"no node {name!r}", name, evidence.node_names)
    first, more = pods[0], f" and {count_more(len(pods) - 1, 'pod')}" if pods[1:] else ""
    return click.ClickException(
        f"there is no node {name!r} any more, and pod {first}{more} with shares of GPUs is still"
        f" bound to it: vgpu explain pod {first}"
    )


def _missing_workload(name: str, evidence: Any) -> click.ClickException:
    """The error for a workload that does not exist, or is of no object that was read."""
    from vgpu.kube.kueue_kinds import WORKLOADS  # noqa: PLC0415  # slow to import

    kueue = evidence.read.kueue
    error = _missing(f"no Workload {name} of Kueue", name, evidence.workload_names)
    text = error.message
    if WORKLOADS.name in kueue.unread:
        text = f"it is not known whether there is a Workload {name} of Kueue"
    notes = f" ({'; '.join(kueue.notes)})" if kueue.notes else ""
    return click.ClickException(text + notes)


def _missing(what: str, name: str, known: Iterable[str]) -> click.ClickException:
    near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    hint = f" Is it {' or '.join(near)}?" if near else ""
    return click.ClickException(f"there is {what}.{hint}")
