"""A checkpoint of our own device plugin on a simulated node."""

from pathlib import Path

from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Allocation, Share
from vgpu.model.names import Phase, PodRef
from vgpu.model.own_checkpoint import Checkpoint, encode, file_name

BOOT = "d41b3b16-8d57-4daf-8838-a7cb7443812a"


def keep(paths, holding, boot_id=BOOT):
    """Say that a container holds what the ledger has of it; the checkpoint's path."""
    share = Share(holding.share.device, holding.share.memory_bytes, holding.share.cores_milli)
    allocation = Allocation(holding.container, (share,), Phase.ASSIGNED)
    admitted_pod = AdmittedPod(PodRef(holding.pod.uid, "", ""), (allocation,), since=1.0)
    kept = Checkpoint("node", holding.scheme, boot_id, 1.0, (admitted_pod,))
    boot = Path(paths.procfs, "sys/kernel/random/boot_id")
    boot.parent.mkdir(parents=True, exist_ok=True)
    boot.write_text(f"{BOOT}\n")
    path = Path(paths.state_dir, file_name(holding.scheme))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(kept))
    return path
