"""``vgpu inspect``'s part about pods of other GPU schedulers. Pure."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from vgpu.inventory.other_schedulers import OtherPod
from vgpu.model.durations import age
from vgpu.program.terminal import BAD, BOLD, DIM, DOUBTFUL, PLAIN, Line
from vgpucli.inspect.text import is_stuck, state_text, who

_NOTE: Final = (
    "vgpu does not read the shares of these pods: their GPUs are in no sum, and no rule of vgpu"
    " reconcile acts on the pods."
)


def other_lines(others: Sequence[OtherPod], as_of: float, *, width: int) -> Iterator[Line]:
    """The lines, at most ``width`` wide but for names."""
    if not others:
        return
    yield [("Other GPU schedulers", BOLD)]
    for other in others:
        recognised = other.recognised
        since = "" if other.since is None else age(as_of - other.since)
        by = f"{recognised.scheduler}, by {recognised.key}"
        facts = "  ".join(filter(None, (other.node or "not scheduled", by, since)))
        yield [(f"  {who(other.pod, '')}  ", PLAIN), (facts, DIM)]
        if text := state_text(other.state, as_of):
            yield [(f"    {text}", BAD if is_stuck(other.state) else DOUBTFUL)]
    for line in textwrap.wrap(_NOTE, width, initial_indent="  ", subsequent_indent="  "):
        yield [(line, DIM)]
    yield []
