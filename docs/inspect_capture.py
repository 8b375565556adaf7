"""Writes docs/inspect.svg: what `vgpu inspect` prints of the tests' sample cluster.

A node with time-slicing is beside it.

python docs/inspect_capture.py
"""

import json
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from tests.support import sample_cluster  # noqa: E402
from vgpu.inventory import Objects, Units, inventory  # noqa: E402
from vgpu.kube.dump import decode_dump  # noqa: E402
from vgpucli.inspect.table import show  # noqa: E402

PICTURE = HERE / "inspect.svg"
COLUMNS = 120

GPU = "nvidia.com/gpu"
SLICED = (
    sample_cluster.nvidia_node(
        "sliced-1",
        GPU,
        20,
        product="NVIDIA-A10-SHARED",
        count=2,
        memory=23028,
        replicas=10,
        sharing_strategy="time-slicing",
    ),
    sample_cluster.pod("notebook-0", "sliced-1", {GPU: 1}, namespace="dev"),
    sample_cluster.pod("notebook-1", "sliced-1", {GPU: 2}, namespace="dev"),
)


def main() -> None:
    """Print it into a picture."""
    items = (*sample_cluster.items(), *SLICED)
    dump = decode_dump(json.dumps(sample_cluster.dump(items)).encode())
    objects = Objects(dump.nodes, dump.pods, dump.share_pods, dump.unhealthy)
    with Path("/dev/null").open("w") as nowhere:
        console = Console(
            file=nowhere, record=True, width=COLUMNS, force_terminal=True, highlight=False
        )
        show(console, inventory(objects, Units()), sample_cluster.NOW)
        # Fonts from elsewhere would not be loaded inside of a page; any monospaced one will do.
        template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        console.save_svg(str(PICTURE), title="vgpu inspect", code_format=template)


if __name__ == "__main__":
    main()
