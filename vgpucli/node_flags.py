"""The flags of commands that can look at this node themselves; ``--help`` needs no exporter."""

from typing import TypeVar

import click

from exporter.command import command as exporter_command
from vgpu.program.flags import field
from vgpu.schemes.resource_names import ORIGINAL_NAMES

NODE_FLAGS = (
    "--node-name",
    "--shim.root",
    "--kubelet.log-dir",
    "--kubelet.checkpoint",
    "--kubelet.pod-resources",
    "--pods",
    "--limits.gaia-dir",
    "--limits.kubeshare-dir",
    "--plugin.state-dir",
    "--path.procfs",
    "--path.cgroupfs",
    "--tokens.url",
)
"""Flags of the exporter for the paths and names of a node."""

FLAGS = (
    *NODE_FLAGS,
    "--gpushare.memory-unit",
    "--volcano.memory-factor",
    "--sample.timeout",
)
"""The exporter's flags that these commands take."""

NAME_FLAGS = ("--nvidia.resource", *(f"--{system}.resource" for system in ORIGINAL_NAMES))
"""The exporter's flags that put names of resources in force; they give no value."""

AnyCommand = TypeVar("AnyCommand", bound=click.Command)

SIMULATE = click.Option(
    ["--simulate"], is_flag=True, help="Look at an embedded simulated node: no GPU needed."
)


def node_flags(command: AnyCommand) -> AnyCommand:
    """Give the command ``--simulate`` and the exporter's flags about the node."""
    wanted = {field(name) for name in (*FLAGS, *NAME_FLAGS)}
    command.params.append(SIMULATE)
    command.params += [param for param in exporter_command.params if param.name in wanted]
    return command
