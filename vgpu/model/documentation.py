"""How texts of the programs name the documentation and themselves."""

from typing import Final

from vgpu import __version__
from vgpu.model.addresses import ADDRESS, SITE

USER_AGENT: Final = f"vgpu/{__version__}" + (f" (+{ADDRESS})" if ADDRESS else "")
"""What the programs call themselves in their requests."""


def page(name: str) -> str:
    """A page, by its name without a suffix: its address, or words where it has none."""
    return f"{SITE}/{name}.html" if SITE else f"the page {name} of the documentation"
