"""Writes docs/dashboards/*.png: each dashboard after some minutes of a simulated cluster.

    python docs/dashboards_capture.py

Real exporters on twenty simulated nodes, the real reconciler repairing one thing after the other,
pages of device plugins with made-up counts, and Debian's Prometheus. It takes as long as it shows.
"""

import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from grafana.preview import pictures  # noqa: E402
from tests.grafana.living_cluster import LivingCluster  # noqa: E402

SECONDS = 300
WRITE_SECONDS = 1.0
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
        one = {"vgpu-node": {"node": "gpu-node-1"}}
        pictures(url, {}, seconds, HERE / "dashboards", one)


if __name__ == "__main__":
    main()
