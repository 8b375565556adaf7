"""`vgpu`: one command, whose sub-commands are imported only when they run.

The table maps a name to ``module:function`` and its one-line help, so that ``vgpu --help``
imports none of them.
"""

import difflib
import importlib
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from vgpu.program import logs
from vgpu.program.failures import name_standard_output, print_defect, print_thread_defect, status_of
from vgpu.program.version import version_option

PLUGIN = "kubectl-vgpu"
"""The program name by which kubectl finds the plugin ``kubectl vgpu``."""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "exporter": ("exporter.command:command", "Serve this node's GPU metrics to Prometheus."),
    "device-plugin": (
        "deviceplugin.main:command",
        "Give this node's GPUs to pods, as a device plugin of the kubelet.",
    ),
    "inspect": ("vgpucli.inspect.command:command", "Show who holds what on the cluster's GPUs."),
    "fleet": ("fleet.main:command", "Show all shared GPUs of a cluster on a page."),
    "fit": ("vgpucli.fit.command:command", "Count how many more pods fit on shared GPUs."),
    "quota": (
        "vgpucli.quota.command:command",
        "Propose quotas of shared GPUs in the form of Kubernetes itself.",
    ),
    "bill": ("vgpucli.bill.command:command", "Add up what shared GPUs cost, by share."),
    "explain": (
        "vgpucli.explain.command:command",
        "Explain why a pod does not run, or the state of a node or GPU.",
    ),
    "doctor": (
        "vgpucli.doctor.command:command",
        "List what is installed of the sharing systems, and what is wrong with it.",
    ),
    "node-resource": (
        "vgpucli.node_resource:command",
        "Advertise an extended resource on a node, or withdraw it.",
    ),
    "reconcile": (
        "reconciler.main:command",
        "Find what shared GPUs left failed, stuck or forgotten, and repair it.",
    ),
    "scheduler": (
        "scheduler.main:command",
        "Place pods on shared GPUs, as an extender of kube-scheduler.",
    ),
    "kubeshare": (
        "kubeshare.main:command",
        "Run KubeShare's controllers on a current Kubernetes.",
    ),
    "feedback": (
        "vgpucli.feedback.command:command",
        "Hold low priorities back on this node, in place of HAMi's monitor.",
    ),
    "tokens": (
        "kubeshare.tokens.main:command",
        "Share this node's GPUs among pods with Gemini's hook.",
    ),
    "top": ("vgpucli.top.command:command", "Watch a node's GPUs and the containers on them."),
    "topology": (
        "vgpucli.topology.command:command",
        "Print or serve the GPU topology, as gpu-manager does.",
    ),
    "completion": ("vgpucli.completion:command", "Print a shell's completion script."),
    "demo": (
        "vgpucli.demo.command:command",
        "Run exporter, reconciler and scheduler on a simulated cluster.",
    ),
    "version": ("vgpu.program.version:command", "Print the version."),
    "help": ("vgpucli.usage:command", "Print a command's help."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and loads one when it is called."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Run under the name with which the program was called; ends the process by default."""
        if kwargs.get("prog_name") is None and Path(sys.argv[0]).name == PLUGIN:
            kwargs["prog_name"] = PLUGIN.replace("-", " ")

        def run() -> Any:
            kwargs["standalone_mode"] = False
            return super(LazyGroup, self).main(*args, **kwargs)

        if not standalone_mode:
            return run()
        name_standard_output()
        sys.excepthook = print_defect
        threading.excepthook = print_thread_defect
        logs.configure_default()
        sys.exit(status_of(run))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; an unknown name gets the similar ones."""
        name = args[0]
        near = difflib.get_close_matches(name, COMMANDS)
        if name not in COMMANDS and near and not ctx.resilient_parsing:
            similar = " or ".join(map(repr, near))
            raise click.UsageError(f"No such command {name!r}. Did you mean {similar}?", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """The names, in the order of the table."""
        return list(COMMANDS)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names that begin so, from the table alone, and the flags."""
        names = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module. A shell that asks for completion gets values, too."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if ctx.resilient_parsing:
            from vgpu.program.value_completion import with_values  # noqa: PLC0415  # slow

            return with_values(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in ``--help``, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Run 'vgpu COMMAND --help' for a command's flags.",
)
@version_option
def main(**_: Any) -> None:
    """See, repair and allocate GPUs that are shared in Kubernetes."""
