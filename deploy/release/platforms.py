"""The platforms of the image and of the bundles."""

import platform
from typing import Final

import msgspec

from deploy.release.commands import ReleaseError


class Platform(msgspec.Struct, frozen=True):
    """One of them.

    Attributes:
        name: as OCI, Debian and Go name it.
        machine: as the kernel names it (``uname -m``).
        elf: ``e_machine`` of its programs, as pyelftools names it.
        variant: OCI's variant of the processor; empty where there is none.
        loader: path of the dynamic loader in the image.
        libraries: folder of the libraries in the image.
    """

    name: str
    machine: str
    elf: str
    variant: str
    loader: str
    libraries: str

    @property
    def wheels(self) -> str:
        """The platform's wheels, as uv names them: for glibc 2.28 or newer."""
        return f"{self.machine}-manylinux_2_28"


PLATFORMS: Final = {
    platform.name: platform
    for platform in (
        Platform(
            name="amd64",
            machine="x86_64",
            elf="EM_X86_64",
            variant="",
            loader="usr/lib64/ld-linux-x86-64.so.2",
            libraries="usr/lib/x86_64-linux-gnu",
        ),
        Platform(
            name="arm64",
            machine="aarch64",
            elf="EM_AARCH64",
            variant="v8",
            loader="usr/lib/ld-linux-aarch64.so.1",
            libraries="usr/lib/aarch64-linux-gnu",
        ),
    )
}


def native() -> Platform:
    """The platform of this machine. Raises ReleaseError for a machine of another platform."""
    for candidate in PLATFORMS.values():
        if candidate.machine == platform.machine():
            return candidate
    machines = " or ".join(candidate.machine for candidate in PLATFORMS.values())
    raise ReleaseError(f"this machine is {platform.machine()}; an image is built on {machines}")
