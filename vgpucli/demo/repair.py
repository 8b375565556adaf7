"""The demo's use of `vgpu reconcile`: a plan is made and applied, then the next one is made.

The shown commands run in this process, with the real client.
"""

import os
import shlex
from pathlib import Path
from typing import Final

import click

from vgpu.program.failures import report
from vgpu.program.output import say, say_text
from vgpu.program.terminal import BOLD, standard_output, write

UNITS: Final = {"VGPU_VOLCANO_MEMORY_FACTOR": "1024", "VGPU_GPUSHARE_MEMORY_UNIT": "GiB"}
"""The environment variables with the units of the demo's pods."""

_INTRODUCTION: Final = """\
  The node is one of three of a simulated cluster, where things have failed, got
  stuck or been forgotten. A plan is made and applied, then the next one is made:
"""


def audit_of(kubeconfig: str) -> str:
    """The file with what was repaired."""
    return str(Path(kubeconfig).with_name("audit.jsonl"))


def repair(kubeconfig: str) -> None:
    """Make a plan for the cluster, apply it, and make the next one."""
    audit = audit_of(kubeconfig)
    say_text(f"{_INTRODUCTION}\n")
    _export(KUBECONFIG=kubeconfig)
    _export(**UNITS)
    _reconcile("apply", "--yes", f"--audit={audit}")
    _reconcile("plan")


def _export(**settings: str) -> None:
    """Set environment variables, for the commands that follow."""
    os.environ.update(settings)
    _show("export", *(f"{name}={text}" for name, text in settings.items()))


def _reconcile(*words: str) -> None:
    from reconciler.main import command  # noqa: PLC0415  # the client library is large

    _show("vgpu", "reconcile", *words)
    try:
        command.main([*words], prog_name="vgpu reconcile", standalone_mode=False)
    except click.ClickException as error:
        report(error)
    say()


def _show(*words: str) -> None:
    write(standard_output(), [[(f"$ {shlex.join(words)}", BOLD)]])
