"""The device plugin, killed by itself at one step: ``plugin_with_faults.py STEP device-plugin …``.

``STEP`` may end in ``:N``, to die when the step is reached for the N-th time.
"""

import os
import signal
import sys

from deviceplugin import main
from deviceplugin.failpoints import Step
from vgpucli.main import main as cli

wanted, _, times = sys.argv.pop(1).partition(":")
STEP, rest = Step(wanted), int(times or 1)


def at(step: Step) -> None:
    """End the process at the configured step."""
    global rest  # noqa: PLW0603  # a script of its own
    if step is STEP:
        rest -= 1
        if rest == 0:
            os.kill(os.getpid(), signal.SIGKILL)


run = main.run
main.run = lambda options, judged, driver: run(options, judged, driver, at)
cli()
