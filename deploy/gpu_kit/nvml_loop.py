"""Samples the driver as the exporter does, and nothing else: a program to compare costs with."""

import time

import click

from exporter.families.devices import DETAIL_READINGS
from vgpu.sources.nvml import NvmlSource


@click.command()
@click.option("--interval", default=15.0, help="Between two samples, in seconds.")
def main(interval: float) -> None:
    """Sample for ever; print a line after the first sample, from which on costs count."""
    source = NvmlSource(without=DETAIL_READINGS)
    source.sample(time.time())
    click.echo("sampled")
    while True:
        time.sleep(interval)
        source.sample(time.time())


if __name__ == "__main__":
    main()
