"""`vgpu kubeshare`: KubeShare's controllers on a current Kubernetes."""

import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Final

import click

from kubeshare.bodies import HolderOptions
from kubeshare.controller import ControllerOptions, SharePodControllers
from kubeshare.informers import ControllerInformers
from kubeshare.labelled_pods import SCHEDULER_NAME
from kubeshare.metrics import (
    NODE_TABLES,
    TABLES,
    ControllerMetrics,
    ControllerView,
    NodeComponentView,
)
from kubeshare.node_component import NodeComponent, NodeOptions
from kubeshare.placement import KubeShareAlgorithm
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.leader_election import LeaderElector
from vgpu.model.allocation import Device
from vgpu.model.documentation import page
from vgpu.model.facts import GpuSample
from vgpu.program.flags import Duration
from vgpu.program.host import ProgramHost, program_flags
from vgpu.program.kube_flags import connected, kubeconfig_flags
from vgpu.program.node_token import NodeToken, node_token_flag
from vgpu.program.output import say
from vgpu.program.pages import program_routes
from vgpu.schemes.codec import VISIBLE_DEVICES
from vgpu.sources.kubelet import DEFAULT_CHECKPOINT

log = logging.getLogger(__name__)

DEFAULT_ADDRESS: Final = ":9399"

NODE_ADDRESS: Final = ":9401"

LEASE: Final = "vgpu-kubeshare-controller"
"""The name of the Lease by which one of several processes writes."""

REQUEST_SECONDS: Final = 4.0
"""Default maximum time to wait for an answer, in seconds. It is shorter than the time between the
moment at which a leader stops and the moment at which another one begins (5 s)."""

GATHER_SECONDS: Final = 0.02
"""Time for which events of the API server gather before they are read, in seconds."""


@click.group(
    "kubeshare",
    context_settings={"auto_envvar_prefix": "VGPU", "max_content_width": 100},
    epilog=f"""\
\b
Examples:
  vgpu kubeshare controller --holder-image registry.example/vgpu:0.1.0

\b
What it replaces, how to move there and back, and what is not there yet:
{page("kubeshare-controllers")}.
""",
)
def command() -> None:
    """Run KubeShare's controllers on a current Kubernetes."""


@command.command("controller", context_settings={"max_content_width": 100})
@click.option(
    "--holder-image",
    required=True,
    metavar="IMAGE",
    help="Image of holder pods: the image of this program.",
)
@click.option(
    "--holder-priority-class",
    default="",
    metavar="NAME",
    help="PriorityClass of holder pods. It should be high and should not preempt.  [default: none]",
)
@click.option(
    "--holder-pull-secret",
    "holder_pull_secrets",
    multiple=True,
    metavar="NAME",
    help="Secret of kube-system with which holder pods pull their image; repeatable.",
)
@click.option(
    "--placement",
    type=click.Choice([each.value for each in KubeShareAlgorithm]),
    default=KubeShareAlgorithm.PAPER.value,
    show_default=True,
    help="The algorithm of KubeShare's paper, or that of KubeShare 1.",
)
@click.option(
    "--pool-keep-idle",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    metavar="NUMBER",
    help="Number of virtual GPUs that each node keeps although nobody uses them.",
)
@click.option(
    "--pool-idle-ttl",
    type=Duration(),
    metavar="DURATION",
    help="Maximum time for which an idle virtual GPU is kept.  [default: no limit]",
)
@click.option(
    "--labelled-pods",
    is_flag=True,
    help=f"Place pods with KubeShare 2's labels and schedulerName {SCHEDULER_NAME}, too.",
)
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Write only while holding the Lease, so that several may run.",
)
@click.option(
    "--lease-namespace",
    default="kube-system",
    show_default=True,
    metavar="NAMESPACE",
    help=f"Namespace of the Lease {LEASE}.",
)
@kubeconfig_flags
@program_flags(DEFAULT_ADDRESS)
@click.pass_context
def controller(ctx: click.Context, /, **_: Any) -> None:
    """Place SharePods, hold GPUs for them, and create their pods.

    Takes the place of KubeShare-Sched and KubeShare-DevMgr, which must not run beside it.
    """
    params = ctx.params
    options = ControllerOptions(
        KubeShareAlgorithm(params["placement"]),
        HolderOptions(
            params["holder_image"],
            params["holder_priority_class"],
            tuple(params["holder_pull_secrets"]),
            may_stay=params["pool_keep_idle"] > 0,
        ),
        params["pool_keep_idle"],
        params["pool_idle_ttl"] or 0.0,
        params["labelled_pods"],
    )
    with (
        ProgramHost.from_flags(params) as host,
        connected(
            params["kubeconfig"],
            params["context"],
            params["request_timeout"] or REQUEST_SECONDS,
            gather=GATHER_SECONDS,
        ) as api,
    ):
        leader = None
        if params["leader_elect"]:
            leader = LeaderElector(api, params["lease_namespace"], LEASE, socket.gethostname())
        program = ControllerProgram(api, options, leader.leads if leader else lambda: True)
        metrics = host.metrics(TABLES, program.view)
        routes = program_routes(
            "kubeshare controller", {"/metrics": metrics}, ready=program.complaint
        )
        host.start(routes)
        if leader is not None:
            leader.start()
        program.start()
        host.wait()
        program.stop()
        if leader is not None:
            leader.stop()
    ctx.exit(host.leave())


class ControllerProgram:
    """The parts of the program."""

    def __init__(
        self, api: ApiClient, options: ControllerOptions, leads: Callable[[], bool]
    ) -> None:
        self._api = api
        self._elected = leads
        self._metrics = ControllerMetrics()
        self._controllers = SharePodControllers(api, options, self._leads, self._metrics)
        self._informers = ControllerInformers(api, self._controllers)

    def start(self) -> None:
        """Begin."""
        self._informers.start()
        self._controllers.start()

    def stop(self) -> None:
        """End."""
        self._controllers.stop()
        self._informers.close()

    def complaint(self) -> str:
        """Why it does not work; "" if it does, also while another process leads."""
        return self._informers.complaint()

    def view(self) -> ControllerView:
        """What the page of metrics shows."""
        seen = self._controllers.view()
        waiting = frozenset(each.ref.uid for each in seen["share_pods"] if each.needs_place)
        return ControllerView(
            leads=self._elected(),
            ready=not self.complaint(),
            ages=self._informers.ages(),
            api_requests=self._api.requests,
            **seen,
            **self._metrics.counts(waiting),
        )

    def _leads(self) -> bool:
        """Whether it may write: it is elected, and knows the cluster."""
        return self._elected() and not self._informers.complaint()


@command.command("node", context_settings={"max_content_width": 100})
@click.option(
    "--node-name",
    required=True,
    envvar=["VGPU_NODE_NAME", "NODE_NAME"],
    metavar="NAME",
    help="Name of this node.",
)
@click.option(
    "--kubelet.checkpoint",
    "checkpoint",
    default=DEFAULT_CHECKPOINT,
    show_default=True,
    metavar="FILE",
    help="The kubelet's record of its devices.",
)
@click.option(
    "--kubeshare-dir",
    default="/kubeshare/scheduler",
    show_default=True,
    metavar="FOLDER",
    help="Folder of Gemini's files: config and podmanagerport.",
)
@click.option(
    "--library-dir",
    default="/kubeshare/library",
    show_default=True,
    metavar="FOLDER",
    help="Folder of Gemini's library, which gets schedulerIP.txt; empty for none.",
)
@click.option(
    "--node-address",
    default="",
    metavar="ADDRESS",
    help="Address of the pod managers of this node, for schedulerIP.txt.  [default: none]",
)
@click.option(
    "--labelled-pods",
    is_flag=True,
    help="Write the files for pods with KubeShare 2's labels, too.",
)
@node_token_flag
@kubeconfig_flags
@program_flags(NODE_ADDRESS)
@click.pass_context
def node(ctx: click.Context, /, **_: Any) -> None:
    """Report this node's GPUs and those of its holder pods, and write Gemini's files."""
    from vgpu.sources.nvml import NvmlSource  # noqa: PLC0415  # ctypes and pynvml only here

    params = ctx.params
    driver = NvmlSource()
    options = NodeOptions(
        params["node_name"],
        params["checkpoint"],
        params["kubeshare_dir"],
        params["library_dir"],
        params["node_address"],
        params["labelled_pods"],
    )
    with (
        ProgramHost.from_flags(params) as host,
        connected(
            params["kubeconfig"], params["context"], params["request_timeout"], waits=True
        ) as api,
    ):
        component = NodeComponent(api, api, options, lambda: driver_gpus(driver.sample(0.0)))
        token = NodeToken(api, options.node, is_required=params["require_node_token"])
        host.process_numbers = token.numbers(host.process_numbers)

        def complaint() -> str:
            return token.complaint() or component.complaint()

        def view() -> NodeComponentView:
            return NodeComponentView(not complaint(), component.counts(), api.requests)

        metrics = host.metrics(NODE_TABLES, view)
        host.start(program_routes("kubeshare node", {"/metrics": metrics}, ready=complaint))
        token.complaint()  # the log has it before anything is served
        component.start()
        host.wait()
        component.stop()
    ctx.exit(host.leave())


def driver_gpus(sample: GpuSample) -> list[Device]:
    """The GPUs of a sample with their memory."""
    return [
        Device(gpu.uuid, memory_bytes=int(gpu.readings["memory_total_bytes",]))
        for gpu in sample.gpus
        if ("memory_total_bytes",) in gpu.readings
    ]


@command.command("holder", context_settings={"max_content_width": 100})
def holder() -> None:
    """Print the UUIDs of this container's GPUs, a line each, and wait: a holder pod's container."""
    for uuid in os.environ.get(VISIBLE_DEVICES, "").split(","):
        if uuid:
            say(uuid)
    endings = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, endings)
    signal.sigwait(endings)
