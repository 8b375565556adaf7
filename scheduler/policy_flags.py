"""The flags of the scheduler's placement policies, for the program and for predictions of it."""

from typing import Any, Final

import click

from vgpu.placement.dialect import BINPACK, SPREAD
from vgpu.placement.exclusive import ExclusiveRule
from vgpu.program.flags import composed


class ExclusiveRuleType(click.ParamType[ExclusiveRule]):
    """Labels of pods that share no GPU with each other."""

    name = "labels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ExclusiveRule:
        """Convert to a rule; refuses what is no labels."""
        try:
            return ExclusiveRule.of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


policy_flags: Final = composed(
    click.option(
        "--node-policy",
        type=click.Choice((BINPACK, SPREAD)),
        default=BINPACK,
        show_default=True,
        envvar="VGPU_NODE_POLICY",
        help="Whether nodes whose GPUs are in use score more, or idle ones.",
    ),
    click.option(
        "--gpu-policy",
        type=click.Choice((BINPACK, SPREAD)),
        envvar="VGPU_GPU_POLICY",
        help="Which GPUs of a node come first, with Volcano's and HAMi's.  [default: the"
        " original's]",
    ),
    click.option(
        "--volcano.exclusive-rule",
        "volcano_exclusive_rule",
        multiple=True,
        type=ExclusiveRuleType(),
        envvar="VGPU_VOLCANO_EXCLUSIVE_RULE",
        metavar="LABELS",
        help="Volcano's pods with all of these labels (KEY=VALUE, joined by commas) share no GPU"
        " with each other; repeatable. An item of Volcano's deviceshare.GPUExclusiveRules.",
    ),
)
"""node_policy, gpu_policy and volcano_exclusive_rule, each also a variable of the environment."""
