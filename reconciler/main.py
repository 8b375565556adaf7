"""`vgpu reconcile`: find what shared GPUs left failed, stuck or forgotten, and repair it.

======= =====================================================================
plan    shows the actions, and why other objects are skipped
apply   applies a plan, once
run     plans, and applies if configured, again and again
report  summarises the problems and the past actions
restore undoes past edits
======= =====================================================================
"""

import click

from reconciler.commands.apply import apply
from reconciler.commands.plan import plan
from reconciler.commands.report import report
from reconciler.commands.restore import restore_command
from reconciler.commands.run import run
from vgpu.program.groups import FlagsFirstGroup


@click.group(
    "reconcile",
    cls=FlagsFirstGroup,
    context_settings={"max_content_width": 100},
    epilog="""\
\b
Examples:
  vgpu reconcile plan                     what is wrong, and what would be done
  kubectl get nodes,pods -A -o json | vgpu reconcile plan --from -
  vgpu reconcile apply                    do it, once
  vgpu reconcile run --mode apply         do it, again and again

Run 'vgpu reconcile COMMAND --help' for a command's flags; each is also an environment variable,
--state-namespace is VGPU_STATE_NAMESPACE.
""",
)
def command() -> None:
    """Find what shared GPUs left failed, stuck or forgotten, and repair it."""


for _each in (plan, apply, run, report, restore_command):
    command.add_command(_each)
