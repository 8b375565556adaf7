"""A Kubernetes node: a real kubelet and containerd on what looks like a machine of its own.

    with Node(cluster, images) as node:
        node.path("/var/lib/kubelet/device-plugins")     # its files, from here
        node.run(["cat", "/proc/sys/kernel/random/boot_id"])
        node.start("plugin", [sys.executable, "-m", "vgpu", ...])
        node.reboot()

A node is a set of namespaces with a root folder, network, cgroups and boot id of its own (see
node-init.sh), so everything lies where the product looks for it by default:
/var/lib/kubelet/device-plugins, /run/containerd/containerd.sock, /etc/cdi, /var/log/pods. It
writes to nothing of the machine's but what is shown through, such as /tmp.

The network is routed: a veth on the bridge of the workplace, a CNI bridge for the pods. Pods of all
nodes, the API server and the test process reach one another. Only the service ``kubernetes`` has
a working address; there is no kube-proxy and no DNS.
"""

import json
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from tests.support.bed.client import Object
from tests.support.bed.cluster import NOT_YET, SERVICE_ADDRESS, Cluster
from tests.support.bed.images import PAUSE
from tests.support.bed.objects import ready
from tests.support.bed.processes import ENVIRONMENT, Daemon, output
from tests.support.bed.workplace import NODES, ip_batch
from tests.support.environment import ROOT
from tests.support.waiting import wait_until

INIT = Path(__file__).with_name("node-init.sh")

JOIN = 'for procs in $0; do echo 0 >"$procs"; done; exec "$@"'
"""Run "$@" in cgroups."""

DEBIAN = Path("/usr/bin")
"""Where Debian's containerd is: 1.6, without CDI."""

CONTAINERD = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  # A root without CAP_SYS_RESOURCE, as in some virtual machines, cannot start a sandbox without it.
  restrict_oom_score_adj = true
  {cdi}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
"""
CDI = """enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]"""


class Node:
    """A node that is Ready, until it is closed."""

    def __init__(
        self,
        cluster: Cluster,
        images: Sequence[Path],
        *,
        containerd: str = "1.7",
        labels: Mapping[str, str] | None = None,
        gates: Sequence[str] = (),
    ) -> None:
        """Boot it and wait until it is Ready.

        ``images`` are archives to import; ``containerd`` is "1.7", or "1.6" without CDI. ``gates``
        are the kubelet's feature gates that are on.
        """
        self.cluster, self._workplace = cluster, cluster.workplace
        self._number = self._workplace.take_node()
        self.name = f"node{self._number}"
        self.ip = self._workplace.node_address(self._number)
        self._containerd = cluster.tools.containerd_folder if containerd == "1.7" else DEBIAN
        self._cdi = containerd == "1.7"
        self._folder = self._workplace.subfolder(self.name)
        self._logs = self._workplace.subfolder(f"{self.name}-logs")
        self._power: Daemon | None = None
        self._daemons: list[Daemon] = []
        self._labels, self._gates = labels or {}, gates
        self._furnish()
        try:
            self._boot()
            for archive in images:
                self.import_image(archive)
            self.start_kubelet()
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut its power, and take it out of the cluster with its pods."""
        self._power_off()
        self.cluster.remove_node(self.name)
        shutil.rmtree(self._folder)
        self._workplace.give_back_node(self._number)

    # ---------------------------------------------------------------------------- inside

    @property
    def enter(self) -> tuple[str, ...]:
        """The command that runs another as a process of the node, which is its only child."""
        procs = " ".join(str(cgroup / "init" / "cgroup.procs") for cgroup in self._cgroups)
        spaces = [f"--{space}" for space in ("mount", "uts", "ipc", "net", "pid", "cgroup")]
        return ("sh", "-c", JOIN, procs, "nsenter", f"--target={self._init}", *spaces, "--")

    def path(self, path: str) -> Path:
        """A file of the node, until its next boot. An absolute symlink leads out of it."""
        return Path(f"/proc/{self._init}/root{path}")

    def run(
        self,
        command: Sequence[str | Path],
        *,
        stdin: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """What a command prints that runs on the node.

        Raises:
            subprocess.CalledProcessError: with its ``stderr``.
        """
        return output([*self.enter, *command], stdin=stdin or subprocess.DEVNULL, env=env)

    def start(
        self, name: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None
    ) -> Daemon:
        """A program that runs on the node until it is stopped, or the node is."""
        log = self._logs / f"{name}.log"
        self._daemons.append(daemon := Daemon(name, command, log, env=env, enter=self.enter))
        return daemon

    def import_image(self, archive: Path) -> None:
        """Make an image available to its pods."""
        ctr = [self._containerd / "ctr", "--namespace=k8s.io", "images", "import", "-"]
        with archive.open("rb") as file:
            self.run(ctr, stdin=file)

    # ---------------------------------------------------------------------------- kubelet

    def start_kubelet(self) -> None:
        """Start it and wait until it listens."""
        labels = ",".join(f"{key}={value}" for key, value in self._labels.items())
        self.kubelet = self.start(
            "kubelet",
            [
                self.cluster.tools.path("kubelet"),
                "--config=/var/lib/kubelet/config.yaml",
                "--kubeconfig=/etc/kubernetes/kubelet.conf",
                f"--hostname-override={self.name}",
                f"--node-ip={self.ip}",
                f"--node-labels={labels}",
            ],
        )
        self.kubelet.wait_until(lambda: _listens(self.ip, 10250), "listens")

    def stop_kubelet(self) -> None:
        """End it, as systemd would."""
        self.kubelet.stop()

    def kill_kubelet(self) -> None:
        """End it with SIGKILL."""
        self.kubelet.signal(signal.SIGKILL)
        self.kubelet.wait()

    def restart_kubelet(self) -> None:
        """Stop and start it."""
        self.stop_kubelet()
        self.start_kubelet()

    def object(self) -> Object:
        """The Node as the API server has it."""
        return self.cluster.client.get(f"/api/v1/nodes/{self.name}")

    def wait_ready(self) -> None:
        """Until this boot's kubelet says that the node is Ready."""
        self.kubelet.wait_until(
            lambda: (
                ready(node := self.object())
                and node["status"]["nodeInfo"]["bootID"] == self.boot_id
            ),
            "Ready",
            failures=NOT_YET,
        )

    # ---------------------------------------------------------------------------- power

    @property
    def boot_id(self) -> str:
        """As /proc/sys/kernel/random/boot_id has it."""
        return (self._folder / "boot-id").read_text().strip()

    def reboot(self, before_kubelet: Callable[[], None] | None = None) -> None:
        """Cut the power, and boot with a new boot id and an empty /run.

        ``before_kubelet`` is called when all but the kubelet runs.

        All processes end at once, what is mounted is gone, /var and /etc stay. When this returns
        the kubelet runs and the node is Ready, but it may not have looked at its pods yet; what
        else has to run, the caller starts anew.
        """
        self._power_off()
        self._boot()
        if before_kubelet:
            before_kubelet()
        self.start_kubelet()
        self.wait_ready()

    def _boot(self) -> None:
        (self._folder / "boot-id").write_text(f"{uuid.uuid4()}\n")
        self._cgroups = self._workplace.cgroups(self.name)
        self._power = Daemon(
            "init",
            [],
            self._logs / "init.log",
            enter=["bash", str(INIT)],
            env={
                "FOLDER": str(self._folder),
                "NODE_NAME": self.name,
                "CGROUPS": " ".join(map(str, self._cgroups)),
                "VISIBLE": " ".join(map(str, self._visible())),
            },
        )
        self._init = self._power.pid
        self._power.wait_until(self.path("/run/booted").exists, "boots")
        self._connect()
        path = f"{self._containerd}:{ENVIRONMENT['PATH']}"  # it looks for its shim there
        containerd = self.start(
            "containerd",
            [self._containerd / "containerd", "--log-level=warn"],
            env={"PATH": path},
        )
        socket_file = self.path("/run/containerd/containerd.sock")
        containerd.wait_until(lambda: _accepts(socket_file), "serves")

    def _power_off(self) -> None:
        if self._power:
            self._power.signal(signal.SIGKILL)
            self._power.wait()  # the end of init is the end of all its processes
        for daemon in self._daemons:
            daemon.kill()
        self._daemons.clear()
        self._workplace.remove_cgroups(self.name)

    def _visible(self) -> list[Path]:
        """What programs that run on the node need, should it lie in /var or /etc."""
        tools = {self.cluster.tools.path("kubelet").resolve().parent, self._containerd}
        return [*tools, self._workplace.folder, ROOT, Path(sys.prefix), Path(sys.base_prefix)]

    def _connect(self) -> None:
        """A cable to the bridge, and a way to the other nodes' pods and the API server."""
        place, port = self._workplace, f"{self._workplace.bridge}n{self._number}"
        if port in (name for _, name in socket.if_nameindex()):  # the last boot's, dying
            wait_until(lambda: port not in (name for _, name in socket.if_nameindex()), "unplugged")
        ip_batch(
            [
                f"link add {port} type veth peer name eth0 netns {self._init}",
                f"link set {port} master {place.bridge} up",
            ]
        )
        routes = [
            f"route add {place.pod_subnet(other)} via {place.node_address(other)}"
            for other in NODES
            if other != self._number
        ]
        network = ("nsenter", f"--net=/proc/{self._init}/ns/net")
        ip_batch(
            [
                f"addr add {self.ip}/24 dev eth0",
                "link set eth0 up",
                *routes,
                f"route add default via {place.address}",
            ],
            enter=network,
        )
        apiserver = f"{place.address}:{self.cluster.port}"
        for chain in ("PREROUTING", "OUTPUT"):
            rule = f"--append {chain} --destination {SERVICE_ADDRESS} --protocol tcp --dport 443"
            target = f"--jump DNAT --to-destination {apiserver}"
            self.run(["iptables", "--table", "nat", *rule.split(), *target.split()])

    # ---------------------------------------------------------------------------- furniture

    def _furnish(self) -> None:
        """The files that are there before the first boot."""
        root = self._folder / "root"
        for folder in ("root", "usr/upper", "usr/work"):
            (self._folder / folder).mkdir(parents=True)
        shutil.copytree("/etc", root / "etc", symlinks=True)
        for folder in ("cache", "lib", "log", "tmp"):
            (root / "var" / folder).mkdir(parents=True)
        (root / "var/run").symlink_to("../run")  # relative, for path()
        authority = self.cluster.authority
        identity = self.cluster.user(f"system:node:{self.name}", "system:nodes")
        serving = authority.server(f"{self.name}-serving", self.name, self.ip)
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"x509": {"clientCAFile": str(authority.ca.certificate)}},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "maxOpenFiles": 20000,
            "makeIPTablesUtilChains": False,
            "enforceNodeAllocatable": ["pods"],
            # The machine's disk may be nearly full of other things.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "1s",  # how soon the Node shows what a plugin has
            "featureGates": dict.fromkeys(self._gates, True),
        }
        network = {
            "cniVersion": "0.4.0",
            "name": "bed",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": self._workplace.pod_subnet(self._number)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        files = {
            "etc/containerd/config.toml": CONTAINERD.format(
                pause=PAUSE, cdi=CDI if self._cdi else ""
            ),
            "etc/cni/net.d/10-bed.conflist": json.dumps(network),
            "etc/kubernetes/kubelet.conf": identity.kubeconfig.read_text(),
            "var/lib/kubelet/config.yaml": json.dumps(kubelet),
            "etc/hostname": f"{self.name}\n",
            "etc/hosts": f"127.0.0.1 localhost\n{self.ip} {self.name}\n",
            "etc/resolv.conf": "",
        }
        for name, content in files.items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)  # on the machine it may be a link to somewhere
            file.write_text(content)


def _listens(host: str, port: int) -> bool:
    with socket.create_connection((host, port), timeout=1):
        return True


def _accepts(socket_file: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(socket_file))
        return True
