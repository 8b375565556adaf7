"""Writes docs/dashboards/*.png: each dashboard after some minutes of a simulated cluster.

    python docs/dashboards_capture.py

docs/schemes/nvidia.png is the beginning of *Node* for a node with time-slicing.

Real exporters on twenty simulated nodes, the real reconciler repairing one thing after the other,
pages of device plugins with made-up counts, and Debian's Prometheus. It takes as long as it shows.
"""

import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from grafana.answers import Server  # noqa: E402
from grafana.preview import picture, pictures  # noqa: E402
from grafana.reading import EVERYTHING, FOLDER, load, of_range  # noqa: E402
from tests.grafana.living_cluster import LivingCluster  # noqa: E402

SECONDS = 300
WRITE_SECONDS = 1.0
TIME_SLICED = "gpu-node-11"
AFTER_IT = "Over time"
"""The heading below the row about NVIDIA's own sharing."""

REPAIRING = (
    "--mode=apply",
    "--max-per-cycle=1",
    "--every=20s",
    "--leader-elect",
    "--volcano.memory-factor=1024",
)


def main() -> None:
    """Let the cluster live, then draw."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with (
        tempfile.TemporaryDirectory(prefix="vgpu-dashboards-") as folder,
        LivingCluster(
            Path(folder), *REPAIRING, f"--audit={folder}/audit.jsonl", compat=()
        ) as living,
    ):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            living.move_on()
            time.sleep(WRITE_SECONDS)
        server = living.servers.honouring
        url = f"http://127.0.0.1:{server.port}"
        (HERE / "schemes" / "nvidia.png").write_bytes(time_sliced(url, seconds))
        one = {"vgpu-node": {"node": "gpu-node-1"}}
        pictures(url, {}, seconds, HERE / "dashboards", one)


def time_sliced(url: str, seconds: float) -> bytes:
    """The first rows of *Node*, down to the one about NVIDIA's own sharing."""
    until = time.time()
    filling = {**EVERYTHING, **of_range(seconds), "node": TIME_SLICED}
    page = load(FOLDER / "vgpu-node.json")
    (end,) = (panel["gridPos"]["y"] for panel in page["panels"] if panel.get("title") == AFTER_IT)
    first = [panel for panel in page["panels"] if panel["gridPos"]["y"] < end]
    return picture({**page, "panels": first}, Server(url, filling, until - seconds, until))


if __name__ == "__main__":
    main()
