"""The real `vgpu device-plugin` as a process, beside a stub kubelet and a simulated API server.

    with PluginBench(folder, "volcano", "--volcano.memory-factor=64") as bench:
        bench.start()
        bench.wait_ready()
        bench.create(pod)
        bench.kubelet.admit(uid, "main", {...})

GPUs are those of the C fake driver. Everything listens on loopback and on sockets of the folder.
With ``in_pod`` the plugin finds the API server as in a pod: over TLS, by its service account.
"""

import json
import os
import signal
import ssl
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from simulator.apiserver import ApiServer
from simulator.store import ObjectStore
from tests.deviceplugin.admitting_kubelet import AdmittingKubelet
from tests.support.bed.pki import Authority
from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from tests.support.live import parse, port_in
from tests.support.nvml_fake import Device, FakeDriver, uuid
from tests.support.waiting import WAIT_SECONDS
from vgpu.kube.kinds import NODES, PODS
from vgpu.sources.runtime import HOST_PID_NAMESPACE

IN_A_POD = Path(__file__).with_name("in_a_pod.py")
NODE = "node-1"
GIB = 2**30
BOOT = "d41b3b16-8d57-4daf-8838-a7cb7443812a"


class PluginBench:
    """A node of its own in a folder, and a plugin that serves it."""

    def __init__(self, folder, scheme, *flags, gpus=2, memory=16 * GIB, in_pod=False):
        self.folder, self.scheme, self.flags = Path(folder), scheme, flags
        self.uuids = [uuid(number) for number in range(gpus)]
        self.memory = memory
        self._short = tempfile.TemporaryDirectory()  # a socket's path may have 107 characters
        self.kubelet_dir = Path(self._short.name)
        self.cdi_dir = self._made("cdi")
        self.state_dir = self._made("state")
        self.driver = FakeDriver(self._made("driver"))
        self.write_gpus()
        (self._made("proc/sys/kernel/random") / "boot_id").write_text(f"{BOOT}\n")
        (self._made("proc/1") / "cgroup").write_text("0::/init.scope\n")
        (self._made("proc/self/ns") / "pid").symlink_to(HOST_PID_NAMESPACE)
        self.kubelet = AdmittingKubelet(self.kubelet_dir, self._made("cgroup"))
        self.store = ObjectStore()
        self.account = self._made("account") if in_pod else None
        self.server = ApiServer(self.store, tls=self._tls() if in_pod else None)
        self.kubeconfig = self.folder / "kubeconfig"
        if not in_pod:
            self.kubeconfig.write_text(self.server.kubeconfig())
        self.store.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.program = ["-m", "vgpu"]
        self.process = None
        self.port = 0
        self._log = self.folder / "plugin.log"

    def _made(self, name):
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def __enter__(self):
        self.server.__enter__()
        self.kubelet.start()
        return self

    def __exit__(self, *_):
        if self.process is not None and self.process.running:
            self.process.kill()
        self.kubelet.stop()
        self.server.__exit__(None, None, None)
        self._short.cleanup()

    # ------------------------------------------------------------ the driver

    def write_gpus(self, *, without=(), **more):
        """What the driver reports from now on; ``more`` is FakeDriver.write's."""
        there = [
            Device(self.uuids[n], total=self.memory, minor=n, bus=f"00000000:0{n}:00.0")
            for n in range(len(self.uuids))
            if n not in without
        ]
        self.driver.write(devices=there, **more)

    # ------------------------------------------------------------ the program

    def _tls(self):
        """The server's side; the other one is in the account."""
        authority = Authority(self.folder / "pki")
        pair = authority.server("apiserver", "127.0.0.1")
        (self.account / "token").write_text("token")
        (self.account / "ca.crt").write_bytes(authority.ca.certificate.read_bytes())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    def environment(self):
        if self.account is None:
            return {**os.environ, **self.driver.env(), "MALLOC_ARENA_MAX": "1"}
        host, _, port = self.server.url.removeprefix("https://").partition(":")
        found = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
        more = {"HOME": str(self.folder), "MALLOC_ARENA_MAX": "1"}
        return {**kept, **self.driver.env(), **found, **more}

    def command(self):
        program = [IN_A_POD, self.account] if self.account else self.program
        shim = [f"--volcano.shim-dir={self.folder}/shim"] if self.scheme == "volcano" else []
        kubeconfig = [] if self.account else [f"--kubeconfig={self.kubeconfig}"]
        return [
            sys.executable,
            *program,
            "device-plugin",
            f"--scheme={self.scheme}",
            f"--node-name={NODE}",
            *kubeconfig,
            "--web.listen-address=127.0.0.1:0",
            f"--cdi.spec-dir={self.cdi_dir}",
            f"--state-dir={self.state_dir}",
            f"--kubelet.dir={self.kubelet_dir}",
            f"--kubelet.pod-resources={self.folder}/no.sock",
            f"--kubelet.log-dir={self._made('logs')}",
            f"--path.procfs={self.folder}/proc",
            f"--path.cgroupfs={self.folder}/cgroup",
            *shim,
            *self.flags,
        ]

    def start(self):
        """Start it, or start it again."""
        self.port = 0
        self._log.unlink(missing_ok=True)
        self.process = Daemon("plugin", self.command(), self._log, env=self.environment(), cwd=ROOT)

    def stop(self, number=signal.SIGTERM):
        """End it by a signal; its exit status."""
        return self.process.stop(number)

    def log(self):
        """What its last start has logged."""
        return self._log.read_text()

    def get(self, path):
        """(status, text) of a page; (0, "") if nobody answers yet."""
        if not self.port:
            self.port = port_in(self.log())
        if not self.port:
            return 0, ""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=WAIT_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()
        except (URLError, OSError):
            return 0, ""

    def metrics(self):
        """Series -> value, as :func:`live.parse` names them."""
        return parse(self.get("/metrics")[1])

    def wait_until(self, condition, what):
        """Until it holds, while the plugin runs."""

        return self.process.wait_until(condition, what)

    def wait_ready(self):
        """Until pods can be served."""
        self.wait_until(lambda: self.get("/-/ready")[0] == 200, "ready")

    # ------------------------------------------------------------ pods

    def create(self, pod):
        """A pod's object; its UID."""
        return self.store.create(PODS, pod)["metadata"]["uid"]

    def spec(self, answer):
        """What the runtime reads of an answer: the CDI spec file of its name."""
        name = answer.cdi_devices[0].name.partition("=")[2]
        return json.loads((self.cdi_dir / f"vgpu-{name}.json").read_text())


def env_of(spec):
    """The environment of a CDI spec's only device."""
    (device,) = spec["devices"]
    return dict(line.split("=", 1) for line in device["containerEdits"]["env"])


def volcano_annotations(uuid_, memory, cores, node=NODE):
    """As Volcano's scheduler leaves a pod of one container with one share."""
    now, devices_text = str(int(time.time())), f"{uuid_},NVIDIA,{memory},{cores}:"
    return {
        "volcano.sh/vgpu-node": node,
        "volcano.sh/vgpu-ids-new": devices_text,
        "volcano.sh/devices-to-allocate": devices_text,
        "volcano.sh/vgpu-time": now,
        "volcano.sh/bind-time": now,
        "volcano.sh/bind-phase": "allocating",
    }


def volcano_pod(name, uuid_, memory=1024, cores=10, namespace="team"):
    """Its object at the API server: one container, ``main``, with one share."""
    limits = {
        "volcano.sh/vgpu-number": "1",
        "volcano.sh/vgpu-memory": str(memory),
        "volcano.sh/vgpu-cores": str(cores),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": volcano_annotations(uuid_, memory, cores),
        },
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Pending"},
    }
