"""Waits for events of all GPUs as the exporter does, and prints what the wait cost: a program.

A driver whose wait does not block would make the exporter's thread spin.
"""

import sys
import time

import click
import msgspec

from deploy.gpu_kit.driver_answers import handles
from deploy.gpu_kit.result import STATUS_NO_DRIVER
from vgpu.sources.nvml import NvmlBinding
from vgpu.sources.nvml_calls import CallError
from vgpu.sources.nvml_xids import XID_CRITICAL_ERROR


class Waited(msgspec.Struct, frozen=True):
    """The cost of waiting: seconds by the clock and of CPU, waits that returned, and GPUs heard."""

    seconds: float
    cpu_seconds: float
    waits: int
    events: int
    heard: int
    gpus: int
    refused: str = ""


def wait(binding: NvmlBinding, seconds: float, piece: float) -> Waited:
    """Wait for so long, in waits of ``piece`` seconds each. Raises CallError."""
    binding.initialise()
    events = binding.call("nvmlEventSetCreate")
    gpus = handles(binding)
    heard, refused = 0, ""
    for _, _, handle in gpus:
        try:
            binding.call("nvmlDeviceRegisterEvents", handle, XID_CRITICAL_ERROR, events)
            heard += 1
        except CallError as error:
            refused = str(error)
    begun, cpu = time.monotonic(), time.process_time()
    waits = came = 0
    while heard and (left := seconds - (time.monotonic() - begun)) > 0:
        came += binding.event(events, max(1, int(min(piece, left) * 1000))) is not None
        waits += 1
    return Waited(
        seconds=time.monotonic() - begun,
        cpu_seconds=time.process_time() - cpu,
        waits=waits,
        events=came,
        heard=heard,
        gpus=len(gpus),
        refused=refused,
    )


@click.command()
@click.option("--seconds", default=60.0, help="How long.")
@click.option("--slice", "piece", default=2.0, help="Maximum time of one wait in the driver.")
def main(seconds: float, piece: float) -> None:
    """Print what waiting for events cost."""
    try:
        waited = wait(NvmlBinding(), seconds, piece)
    except CallError as error:
        click.echo(f"events cannot be awaited: {error}", err=True)
        sys.exit(STATUS_NO_DRIVER)
    click.echo(msgspec.json.encode(waited))


if __name__ == "__main__":
    main()
