"""Runs a load in this pid namespace, and prints by which pids the driver reports it: a program.

It is started by ``unshare --pid --fork --mount-proc``. It ends, with its load, when its input ends.
"""

import subprocess
import sys
import time

import click
import msgspec

from deploy.gpu_kit.answers import UTILIZATION, ListAnswer
from deploy.gpu_kit.driver_answers import handles, lists_of
from deploy.gpu_kit.loads import LoadPlan
from vgpu.sources.nvml import NvmlBinding

PAUSE_SECONDS = 0.1


class Inside(msgspec.Struct, frozen=True):
    """What a process in the namespace sees: the load's own pid, and the driver's lists."""

    pid: int
    lists: tuple[ListAnswer, ...]


def look(gpu: str, seconds: float) -> tuple[ListAnswer, ...]:
    """The GPU's lists, once there is a utilisation sample or after so many seconds."""
    binding = NvmlBinding()
    binding.initialise()
    handle = next(handle for _, uuid, handle in handles(binding) if uuid == gpu)
    end = time.monotonic() + seconds
    while True:
        lists = lists_of(binding, handle)
        sampled = any(answer.call == UTILIZATION and answer.entries for answer in lists)
        if sampled or time.monotonic() > end:
            return lists
        time.sleep(PAUSE_SECONDS)


@click.command()
@click.option("--gpu", required=True, help="UUID of the GPU, which is the only visible one.")
@click.option("--seconds", default=5.0, help="Maximum time to wait for a utilisation sample.")
def main(gpu: str, seconds: float) -> None:
    """Print what is seen inside, then wait for the end of the input."""
    load = subprocess.Popen(  # noqa: S603  # our own program
        LoadPlan(mib=64, busy=0.3).command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if load.stdout is None or load.stdin is None:
        raise RuntimeError("the load has no pipes")
    line = msgspec.json.decode(load.stdout.readline() or '{"error": "it ended"}')
    if "error" in line:
        click.echo(f"the load could not start: {line['error']}", err=True)
        sys.exit(1)
    click.echo(msgspec.json.encode(Inside(line["pid"], look(gpu, seconds))))
    sys.stdin.read()
    load.stdin.close()
    load.wait()


if __name__ == "__main__":
    main()
