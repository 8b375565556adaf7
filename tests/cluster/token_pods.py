"""The token daemon as a DaemonSet on a node of the bed, and SharePods that run the client in C."""

import shutil
from contextlib import suppress

from tests.cluster.kubesharing import share_pod
from tests.kubeshare.tokens.gemini_process import SOURCE, compiled
from tests.support.waiting import wait_until

CLIENT = "/var/lib/gemini-client"
"""The node's folder with the client, and with each pod's FIFO and answers."""

WORKER = """
cd /client; mkfifo $HOSTNAME.in $HOSTNAME.other.in $HOSTNAME.port
exec 3<>$HOSTNAME.in 4<>$HOSTNAME.other.in
(read port <$HOSTNAME.port
 exec ./client -t 60000 $POD_MANAGER_IP $port $POD_NAME <&4 >$HOSTNAME.other.out) &
exec ./client $POD_MANAGER_IP $POD_MANAGER_PORT $POD_NAME <&3 >$HOSTNAME.out
"""
"""The client, which reads commands; and another one, for a port that it is given."""


def token_daemon(namespace, node, image):
    """The DaemonSet, as docs/tokens.md has it: its next pod starts before the last one ends."""
    folders = {"scheduler": "/kubeshare/scheduler", "run": "/run/vgpu/tokens"}
    labels = {"app": "tokens"}
    container = {
        "name": "tokens",
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["tokens", "--handover-wait=60s"],
        "readinessProbe": {
            "httpGet": {"path": "/-/ready", "port": 9402},
            "periodSeconds": 1,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsUser": 0,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": name == "scheduler"}
            for name, path in folders.items()
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "tokens", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "hostNetwork": True,
                    "terminationGracePeriodSeconds": 90,
                    "automountServiceAccountToken": False,
                    "nodeSelector": {"kubernetes.io/hostname": node.name},
                    "containers": [container],
                    "volumes": [
                        {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                        for name, path in folders.items()
                    ],
                },
            },
        },
    }


def install_client(node):
    """The client on the node; it needs no library."""
    folder = node.path(CLIENT)
    folder.mkdir(exist_ok=True)
    shutil.copy(compiled(SOURCE, "-static"), folder / "client")


def worker(name, namespace, milli):
    """A SharePod that runs the client."""
    found = share_pod(name, namespace, milli)
    (container,) = found["spec"]["containers"]
    container["command"] = ["sh", "-c", WORKER]
    container["volumeMounts"] = [{"name": "client", "mountPath": "/client"}]
    found["spec"]["volumes"] = [{"name": "client", "hostPath": {"path": CLIENT}}]
    return found


class Worker:
    """The client of a pod; ``other`` is the one for another port."""

    def __init__(self, node, name):
        self.name, self.folder = name, node.path(CLIENT)

    def answers(self):
        with suppress(FileNotFoundError):
            return (self.folder / f"{self.name}.out").read_text().splitlines()
        return []

    def send(self, line):
        """Returns how many answers there were before."""
        before = len(self.answers())
        (self.folder / f"{self.name}.in").write_text(f"{line}\n")
        return before

    def answer(self, before):
        wait_until(lambda: len(self.answers()) > before, f"an answer to {self.name}")
        return self.answers()[before]

    def ask(self, line):
        return self.answer(self.send(line))

    def other(self, port):
        """A client in the same pod that connects to this port."""
        (self.folder / f"{self.name}.port").write_text(f"{port}\n")
        other = Worker.__new__(Worker)
        other.name, other.folder = f"{self.name}.other", self.folder
        return other
