"""By which pids the driver reports a process of another pid namespace, outside and inside.

Sources differ: NVIDIA's open kernel modules translate pids of process lists into the namespace of
who asks (``_gpuConvertPid``; NVIDIA/open-gpu-kernel-modules#614), utilisation samples can have the
host's (Project-HAMi/HAMi-core#112), and older drivers have the host's everywhere. Outside, both
have to be the host's: the exporter joins them with /proc. Inside, the check records which they are:
that decides what HAMi-core can write into its region as host pid.
"""

import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from deploy.gpu_kit.answers import UTILIZATION, DriverAnswers, ListAnswer
from deploy.gpu_kit.deadline import until
from deploy.gpu_kit.kit import Kit
from deploy.gpu_kit.pid_probe import Inside
from deploy.gpu_kit.processes import KitError, module
from deploy.gpu_kit.result import Result, holds, not_run
from vgpu.sources.nvml_device import COMPUTE

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--")

KINDS = {"processes": COMPUTE, "utilisation": UTILIZATION}


def check(kit: Kit) -> Iterator[Result]:
    """See the module."""
    kit.facts["kernel_module"] = flavour(_text(kit.driver_proc / "version"))
    if shutil.which(NAMESPACE[0]) is None:
        yield not_run("pids", "unshare is not installed")
        return
    probe = module(
        "deploy.gpu_kit.pid_probe", f"--gpu={kit.gpu.uuid}", f"--seconds={kit.pace.settle}"
    )
    process = kit.processes.start([*NAMESPACE, *probe], kit.log, env=kit.loads().env)
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            last = kit.log.read_text(errors="replace").strip().splitlines()
            yield not_run(
                "pids", f"no pid namespace: {last[-1] if last else 'unshare gave no reason'}"
            )
            return
        inside = msgspec.json.decode(line, type=Inside)
        outer = outer_pid(process.pid, inside.pid)
        yield from _compared(kit, inside, outer)
    finally:
        kit.processes.end(process, signal.SIGKILL)  # the namespace ends with its first process


def _compared(kit: Kit, inside: Inside, outer: int) -> Iterator[Result]:
    facts: dict[str, object] = {
        "host_pid": outer,
        "container_pid": inside.pid,
        "ns_pid": ns_pid(outer),
    }
    kit.facts["pids"] = facts
    wanted = {"host": outer, "container": inside.pid}
    # The samples of a load appear outside some time after the load has begun.
    lists = until(lambda: _with_samples(_outside(kit)), kit.pace.settle) or _outside(kit)
    for kind, call in KINDS.items():
        name = which(_pids(lists, call), wanted)
        facts[f"{kind}_outside"] = name
        yield holds(f"pids/{kind} outside", "host", name, true=name == "host")
    for kind, call in KINDS.items():
        name = which(_pids(inside.lists, call), wanted)
        facts[f"{kind}_inside"] = name
        known = name in wanted
        yield holds(f"pids/{kind} inside", "container or host", name, true=known)
    memory = [entry[1] for entry in _entries(inside.lists, COMPUTE)]
    facts["memory_inside"] = memory


def which(pids: frozenset[int], wanted: Mapping[str, int]) -> str:
    """Whose pid is among those reported: ``host``, ``container``, ``none`` or ``other``."""
    for name, pid in wanted.items():
        if pid in pids:
            return name
    return "other" if pids else "none"


def flavour(version: str) -> str:
    """``open``, ``proprietary`` or ``unknown``, from /proc/driver/nvidia/version."""
    if "NVRM version" not in version:
        return "unknown"
    return "open" if "Open Kernel Module" in version else "proprietary"


def ns_pid(pid: int) -> list[int]:
    """A process's pids from the outermost namespace that is visible on (``NSpid``)."""
    for line in _text(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("NSpid:"):
            return [int(text) for text in line.split()[1:]]
    return []


def outer_pid(root: int, inner: int) -> int:
    """Our pid of the process that has the pid ``inner`` in a namespace below ``root``.

    Raises KitError.
    """
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            fields = _text(folder / "stat").rpartition(")")[2].split()
            if len(fields) > 1:
                parents[int(folder.name)] = int(fields[1])
    for pid in parents:
        if ns_pid(pid)[-1:] == [inner] and _descends(pid, root, parents):
            return pid
    raise KitError("the load in the pid namespace cannot be found")


def _descends(pid: int, root: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != root:
        pid = parents[pid]
    return pid == root


def _outside(kit: Kit) -> tuple[ListAnswer, ...]:
    program = module("deploy.gpu_kit.driver_answers")
    printed = kit.processes.output(program, kit.log, seconds=10)
    answers = msgspec.json.decode(printed, type=DriverAnswers)
    return next(gpu.lists for gpu in answers.gpus if gpu.uuid == kit.gpu.uuid)


def _with_samples(lists: tuple[ListAnswer, ...]) -> tuple[ListAnswer, ...]:
    return lists if _entries(lists, UTILIZATION) else ()


def _entries(lists: tuple[ListAnswer, ...], call: str) -> tuple[tuple[int, ...], ...]:
    return next((answer.entries for answer in lists if answer.call == call), ())


def _pids(lists: tuple[ListAnswer, ...], call: str) -> frozenset[int]:
    return frozenset(entry[0] for entry in _entries(lists, call))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
