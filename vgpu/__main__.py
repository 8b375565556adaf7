"""`python -m vgpu` is `vgpu`."""

from vgpu.cli import main

main(prog_name="vgpu")
