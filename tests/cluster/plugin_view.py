"""What a container of SHOW got beyond a plain one, as it and its node see it.

    plain = Sight.of(node, plain_pod)
    Sight.of(node, pod, "main").beyond(plain).env

Where a mount leads is found out by comparing files, so that the test relies neither on
the runtime's notes nor on the plugin's.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from tests.support.bed.client import Object
from tests.support.bed.images import Shown
from tests.support.bed.node import Node

BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"

OVERRIDE = "/overrideEnv"
"""Where a container has a file with the rest of its environment, if there is no CDI."""


class Sight(NamedTuple):
    """One running container.

    Attributes:
        env: as its program sees it.
        asked_env: as the runtime was asked for it, ``KEY=value``, in that order.
        repeated_variables: variables that it was started with more than once.
        mounts: mount point -> (the host's file that lies there, "ro" or "rw").
        devices: path -> major:minor.
        pid: its first process, on the node.
    """

    env: Mapping[str, str]
    asked_env: tuple[str, ...]
    repeated_variables: frozenset[str]
    mounts: Mapping[str, tuple[str, str]]
    devices: Mapping[str, str]
    pid: int

    @classmethod
    def of(cls, node: Node, pod: Object, container: str = "main") -> Self:
        """What it has printed, and what the node knows of its process."""
        shown = Shown.by(node.cluster.client, pod, container)
        bundle = _bundle(node, pod, container)
        pid = first_process(node, pod, container)
        config = json.loads((bundle / "config.json").read_text())
        sources = {mount["destination"]: mount["source"] for mount in config["mounts"]}
        return cls(
            env=shown.env,
            asked_env=tuple(config["process"]["env"]),
            repeated_variables=_twice(environ(node, pid)),
            mounts={
                target: (_proven(node, pid, sources[target], target), line.split()[5][:2])
                for target, line in shown.mounts.items()
                if sources.get(target, "").startswith("/")
            },
            devices=shown.devices,
            pid=pid,
        )

    def beyond(self, plain: Self) -> Self:
        """Without what a plain container has as well."""
        return self._replace(
            env={k: text for k, text in self.env.items() if k not in plain.env},
            mounts={at: mount for at, mount in self.mounts.items() if at not in plain.mounts},
            devices={
                at: numbers for at, numbers in self.devices.items() if at not in plain.devices
            },
        )


def container_id(node: Node, pod: Object, container: str = "main") -> str:
    """As in the pod's status now."""
    status = node.cluster.client.get(pod)["status"]
    statuses = [*status.get("initContainerStatuses", ()), *status["containerStatuses"]]
    (found,) = (one["containerID"] for one in statuses if one["name"] == container)
    return found.removeprefix("containerd://")


def first_process(node: Node, pod: Object, container: str = "main") -> int:
    """Its process, on the node."""
    return int((_bundle(node, pod, container) / "init.pid").read_text())


def environ(node: Node, pid: int) -> list[str]:
    """The environment that a process was started with, as the kernel reports it."""
    return node.run(["cat", f"/proc/{pid}/environ"]).rstrip("\0").split("\0")


def read_inside(node: Node, pid: int, path: str) -> str:
    """A file as the container of the process sees it."""
    return node.run(["cat", f"/proc/{pid}/root{path}"])


def late_env(node: Node, pid: int) -> dict[str, str]:
    """What HAMi-core reads at its start where there is no CDI."""
    lines = read_inside(node, pid, OVERRIDE).splitlines()
    return {key: text for key, _, text in (line.partition("=") for line in lines)}


def _bundle(node: Node, pod: Object, container: str) -> Path:
    return node.path(f"{BUNDLES}/{container_id(node, pod, container)}")


def _twice(env: Iterable[str]) -> frozenset[str]:
    times = Counter(line.partition("=")[0] for line in env)
    return frozenset(name for name, count in times.items() if count > 1)


def _proven(node: Node, pid: int, source: str, target: str) -> str:
    """``source``, if it is what the container sees at ``target``; else a word for the difference.

    Where it leads, if it is a link.
    """
    number = ["stat", "--dereference", "--format=%d:%i"]
    here, there = node.run([*number, source, f"/proc/{pid}/root{target}"]).split()
    real = node.run(["readlink", "--canonicalize", source]).strip()
    return real if here == there else f"not {real}"
