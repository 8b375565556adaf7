"""The chart's token daemon on a node of the bed, and SharePods that run the client in C."""

import shutil
from contextlib import suppress

from tests.cluster.charting import of_the_bed
from tests.cluster.kubesharing import share_pod
from tests.kubeshare.tokens.gemini_process import SOURCE, compiled
from tests.support.deploy_objects import kinds
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
"""The client, which reads commands; and another one, for a port in its command."""


def token_daemon(chart, namespace, node):
    """The chart's objects of the token daemon; the kubelet only asks more often."""
    values = {
        "exporter": {"enabled": False},
        "reconciler": {"kind": "None"},
        "priorityClass": {"create": False},
        "tokens": {"enabled": True},
    }
    where = f"--namespace={namespace}"
    rendered = chart.rendered(of_the_bed(node) | values, where, release=f"{namespace}-tokens")
    (daemon_set,) = kinds(rendered, "DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    container["readinessProbe"]["periodSeconds"] = 1
    return rendered


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
