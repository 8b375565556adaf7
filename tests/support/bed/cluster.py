"""A Kubernetes control plane: etcd and an API server, and the controllers if they are wanted.

    with start_cluster(workplace, tools, controllers=True) as cluster:
        cluster.client.create(...)
        reader = cluster.client_for({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]})
        cluster.kubectl("get", "nodes")

RBAC, the node authorizer and NodeRestriction are on, as kubeadm has them. Several clusters live
side by side in one workplace, each with its own certificates, ports of the bridge's address and
subfolder. All of them have the service range 10.96.0.0/16, so that one's etcd data starts in
another's place.
"""

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import urllib3

from tests.support.bed.client import Client, Object, Refused
from tests.support.bed.pki import Authority, KeyPair
from tests.support.bed.processes import Daemon, output
from tests.support.bed.tools import Tools
from tests.support.bed.workplace import Workplace
from tests.support.waiting import wait_emptied, wait_until

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
"""The first of the range, which the service ``kubernetes`` always has."""

Flags = Mapping[str, Sequence[str]]
"""Further flags of a program, by its name."""

NOT_YET = (OSError, urllib3.exceptions.HTTPError, Refused)


class Cluster:
    """A running control plane. ``client`` and ``kubeconfig`` are of the group system:masters."""

    def __init__(
        self, workplace: Workplace, tools: Tools, folder: Path, etcd_data: Path | None, flags: Flags
    ) -> None:
        self.workplace, self.tools, self.folder = workplace, tools, folder
        self.port = workplace.port()
        self.address = f"https://{workplace.address}:{self.port}"
        self.authority = Authority(folder / "pki")
        self.etcd_data = folder / "etcd"
        if etcd_data:
            shutil.move(etcd_data, self.etcd_data)
        self._flags = flags
        self._etcd = [f"http://{workplace.address}:{workplace.port()}" for _ in "cp"]
        self._token_key = self.authority.service_account_key()
        self._numbers = itertools.count(1)
        self._clients: list[Client] = []
        self.daemons: dict[str, Daemon] = {}
        self.controllers = False
        self.client = self.user("admin", "system:masters")
        self.kubeconfig = self.client.kubeconfig

    def start(self, *, controllers: bool) -> None:
        """Start the programs, and wait until they serve."""
        self.controllers = controllers
        self._start("etcd", self._etcd_flags())
        self.start_api()
        if controllers:
            manager = self._start("kube-controller-manager", self._controller_manager_flags())
            self._start("kube-scheduler", self._scheduler_flags())
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            manager.wait_until(lambda: self.client.find(account), "works", failures=NOT_YET)

    def stop(self) -> None:
        """End every program; etcd at last and politely, so that its data can be kept."""
        etcd = self.daemons.pop("etcd", None)
        for daemon in self.daemons.values():
            daemon.kill()
        self.daemons.clear()
        if etcd:
            etcd.stop()

    def restart_api(self) -> None:
        """Kill the API server alone and start it anew: watches break, and it remembers none."""
        self.kill_api()
        self.start_api()

    def kill_api(self) -> None:
        """Kill the API server alone."""
        self.daemons.pop("kube-apiserver").kill()

    def close(self) -> None:
        """Kill every program and close every client."""
        for daemon in self.daemons.values():
            daemon.kill()
        for client in self._clients:
            client.close()

    def kubectl(self, *args: str, stdin: str = "", client: Client | None = None) -> str:
        """What kubectl prints, as the admin or as another client.

        Raises:
            subprocess.CalledProcessError: with its ``stderr``.
        """
        command = [self.tools.path("kubectl"), f"--kubeconfig={(client or self.client).kubeconfig}"]
        return output([*command, *args], text=stdin, env={"HOME": str(self.folder)})

    @contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """A new namespace; at the end it is emptied and deleted.

        Without controllers nobody makes its default ServiceAccount, which pods need, but us; nor
        does anybody delete what is in it, or wait for the end of a pod.
        """
        name = f"{prefix}-{next(self._numbers)}"
        about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        space = self.client.create(about)
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": name},
        }
        if self.controllers:
            wait_until(lambda: self.client.find(account), f"{name}: has its ServiceAccount")
        else:
            self.client.create(account)
        yield name
        self.client.delete(space)
        pods = f"/api/v1/namespaces/{name}/pods"
        self.client.raw("DELETE", pods, {"gracePeriodSeconds": 1 if self.controllers else 0})
        with suppress(Refused):  # where there are no SharePods
            self.client.raw("DELETE", f"/apis/kubeshare.nthu/v1/namespaces/{name}/sharepods")
        if self.controllers:
            wait_emptied(lambda: self.client.list(pods), f"{name}: its pods go")

    def remove_node(self, name: str) -> None:
        """Forget a node that is gone, and its pods, for whose end nobody can wait."""
        for pod in self.client.list("/api/v1/pods", fieldSelector=f"spec.nodeName={name}"):
            self.client.delete(pod, grace_seconds=0)
        if self.client.find(node := f"/api/v1/nodes/{name}"):
            self.client.delete(node)

    # ---------------------------------------------------------------------------- identities

    def user(self, name: str, group: str = "") -> Client:
        """A client with a certificate; ``group`` gives it the rights of the group."""
        return self._client(name, certificate=self.authority.client(self._new(name), name, group))

    def service_account(
        self, name: str, namespace: str = "default", pod: Object | None = None
    ) -> Client:
        """A client that is a ServiceAccount which exists.

        Its token is bound to a pod, as the kubelet's are, if one is given.
        """
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
        spec: Object = {}
        if pod is not None:
            spec = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod"}}
            spec["boundObjectRef"] |= {key: pod["metadata"][key] for key in ("name", "uid")}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.client.raw("POST", f"{account}/token", request).json()
        user = f"system:serviceaccount:{namespace}:{name}"
        return self._client(user, token=answer["status"]["token"])

    def client_for(self, *rules: Object | str, namespace: str = "") -> Client:
        """A client with exactly these rights, and with those that every ServiceAccount has.

        A rule is a PolicyRule, or the name of a ClusterRole. With ``namespace`` the rights, and
        the new ServiceAccount, are of that namespace; without, they are of the whole cluster.
        """
        home = namespace or "default"
        name = self._new("bed-user")
        scope = "" if namespace else "Cluster"
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": home},
        }
        self.client.create(account)
        policy = [rule for rule in rules if not isinstance(rule, str)]
        roles = [("ClusterRole", rule) for rule in rules if isinstance(rule, str)]
        if policy:
            self.client.create(_rbac(f"{scope}Role", name, namespace, rules=policy))
            roles.append((f"{scope}Role", name))
        subject = {"kind": "ServiceAccount", "name": name, "namespace": home}
        for number, (kind, adapter) in enumerate(roles):
            binding = _rbac(
                f"{scope}RoleBinding",
                f"{name}-{number}",
                namespace,
                roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": adapter},
                subjects=[subject],
            )
            self.client.create(binding)
        for kind, adapter in roles:
            # What is put together from other roles has none until a controller has done so.
            rules_of_role = self.client.get(_rbac(kind, adapter, namespace))["rules"] or ()
            self._until_bound(f"system:serviceaccount:{home}:{name}", rules_of_role, namespace)
        return self.service_account(name, home)

    def _until_bound(self, user: str, rules: Sequence[Object], namespace: str) -> None:
        """The authorizer learns of roles by watching them: a moment after they are made."""
        for rule in rules:
            spec: Object = {"user": user}
            if "nonResourceURLs" in rule:
                spec["nonResourceAttributes"] = {
                    "path": rule["nonResourceURLs"][0],
                    "verb": rule["verbs"][0],
                }
            else:
                resource, _, subresource = rule["resources"][0].partition("/")
                spec["resourceAttributes"] = {
                    "namespace": namespace,
                    "verb": rule["verbs"][0],
                    "group": rule["apiGroups"][0],
                    "resource": resource,
                    "subresource": subresource,
                    "name": next(iter(rule.get("resourceNames", ())), ""),
                }
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": spec,
            }
            self.daemons["kube-apiserver"].wait_until(
                lambda review=review: self.client.create(review)["status"]["allowed"],
                f"grants {json.dumps(rule)} to {user}",
            )

    def _client(self, name: str, *, certificate: KeyPair | None = None, token: str = "") -> Client:
        client = Client(
            name,
            self.address,
            self.authority.ca.certificate,
            self.folder / f"{self._new(name)}.kubeconfig",
            certificate=certificate,
            token=token,
        )
        self._clients.append(client)
        return client

    def _new(self, name: str) -> str:
        return f"{name.rpartition(':')[2]}-{next(self._numbers)}"

    # ---------------------------------------------------------------------------- programs

    def _start(self, program: str, flags: Sequence[str]) -> Daemon:
        command = [self.tools.path(program), *flags, *self._flags.get(program, ())]
        daemon = Daemon(program, command, self.folder / f"{program}.log")
        self.daemons[program] = daemon
        return daemon

    def start_api(self) -> None:
        """Start the API server, and wait until it serves."""
        apiserver = self._start("kube-apiserver", self._apiserver_flags())
        apiserver.wait_until(
            lambda: self.client.raw("GET", "/readyz").status == 200, "ready", failures=NOT_YET
        )

    def _etcd_flags(self) -> list[str]:
        client, peer = self._etcd
        return [
            f"--data-dir={self.etcd_data}",
            "--name=bed",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=bed={peer}",
            "--unsafe-no-fsync",
            f"--quota-backend-bytes={4 << 30}",
            "--log-level=warn",
        ]

    def _apiserver_flags(self) -> list[str]:
        pki, address = self.authority, self.workplace.address
        serving = pki.server(
            "apiserver",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            address,
            SERVICE_ADDRESS,
        )
        kubelet = pki.client("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters")
        return [
            f"--etcd-servers={self._etcd[0]}",
            f"--bind-address={address}",
            f"--advertise-address={address}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={pki.ca.certificate}",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            f"--kubelet-certificate-authority={pki.ca.certificate}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={self._token_key.certificate}",
            f"--service-account-signing-key-file={self._token_key.key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            "--profiling=false",
            "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000",
        ]

    def _controller_manager_flags(self) -> list[str]:
        ca = self.authority.ca
        return [
            *self._controller_flags("system:kube-controller-manager"),
            # Without it every controller acts as the manager itself, whom RBAC forbids nearly all.
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self._token_key.key}",
            f"--root-ca-file={ca.certificate}",
            f"--cluster-signing-cert-file={ca.certificate}",
            f"--cluster-signing-key-file={ca.key}",
            "--controllers=*",
        ]

    def _scheduler_flags(self) -> list[str]:
        return self._controller_flags("system:kube-scheduler")

    def _controller_flags(self, user: str) -> list[str]:
        return [
            f"--kubeconfig={self.user(user).kubeconfig}",
            f"--bind-address={self.workplace.address}",
            f"--secure-port={self.workplace.port()}",
            f"--cert-dir={self.folder}",
            "--leader-elect=false",
            "--kube-api-qps=300",
            "--kube-api-burst=500",
            "--profiling=false",
        ]


@contextmanager
def start_cluster(
    workplace: Workplace,
    tools: Tools,
    *,
    name: str = "cluster",
    controllers: bool,
    etcd_data: Path | None = None,
    flags: Flags | None = None,
) -> Iterator[Cluster]:
    """A cluster until the block ends.

    ``etcd_data`` is an unpacked data folder of etcd to start from; it is moved away.
    """
    cluster = Cluster(workplace, tools, workplace.subfolder(name), etcd_data, flags or {})
    try:
        cluster.start(controllers=controllers)
        yield cluster
    finally:
        cluster.close()


def _rbac(kind: str, name: str, namespace: str, **fields: object) -> Object:
    metadata = {"name": name}
    if not kind.startswith("Cluster"):
        metadata["namespace"] = namespace
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        **fields,
    }
