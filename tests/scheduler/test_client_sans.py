"""Who may call a verb, and who may read a page: real certificates of one CA, over loopback."""

import logging

import pytest

from scheduler.flags import SchedulerOptions
from tests.scheduler.model_api import ModelApi
from tests.scheduler.served import BIND, FILTER, NOW, PREEMPT, Unattached
from tests.scheduler.test_command import ended
from tests.support.web_helpers import Pki, connect, drain, fetch
from vgpu.placement.dialects import PlacementPolicies
from vgpu.web.config import WebConfigFile
from vgpu.web.message import plain
from vgpu.web.server import WebServer

VERBS = {
    "/filter": FILTER,
    "/prioritize": FILTER,
    "/preempt": PREEMPT,
    "/bind": BIND,
    "/gpushare-scheduler/filter": FILTER,
    "/gpushare-scheduler/bind": BIND,
    "/scheduler/predicates": FILTER,
}
PAGES = ("/metrics", "/version", "/gpushare-scheduler/inspect")

NAMES = {
    "kube-scheduler": ("DNS:kube-scheduler",),
    "workload": ("URI:spiffe://cluster.local/kube-scheduler",),
    "address": ("IP:fd00::1",),
    "prometheus": ("DNS:prometheus",),
    "similar": ("DNS:kube-scheduler.example.com", "DNS:*", "email:kube-scheduler@example.com"),
    "nameless": (),
}
"""Names of certificates that the same CA has signed; the common name is the key."""


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"), "vgpu")


@pytest.fixture(scope="module")
def clients(pki):
    """A client's TLS context by name."""
    return {name: pki.client(pki.issue(name, sans=sans)) for name, sans in NAMES.items()}


@pytest.fixture
def serve(pki):
    """Start the scheduler's routes with lists of names; it is stopped after the test."""
    started = []

    def start(client_sans=(), page_sans=(), *, tls=True):
        options = SchedulerOptions(
            kubeconfig="",
            context="",
            request_timeout=None,
            lease_namespace="ns",
            policies=PlacementPolicies(),
            units={},
            is_single=True,
            client_sans=client_sans,
            page_sans=page_sans,
        )
        program = Unattached(
            ModelApi(), options, lambda *_: lambda _: plain(200, "metrics"), clock=lambda: NOW
        )
        config = WebConfigFile(str(pki.requiring_clients("scheduler"))) if tls else None
        server = WebServer(program.routes(), ["127.0.0.1:0"], config)
        server.start()
        started.append(server)
        return server.addresses[0]

    yield start
    for server in started:
        server.stop(grace=1)


def status(address, path, tls=None):
    """The status of a verb or a page."""
    body = VERBS.get(path)
    return fetch(address, path, "POST" if body else "GET", tls=tls, body=body)[0]


def refused(address, tls=None):
    """The paths with the status 403; each other one has 200."""
    found = {path: status(address, path, tls) for path in (*VERBS, *PAGES)}
    assert set(found.values()) <= {200, 403}
    return {path for path, each in found.items() if each == 403}


def test_only_the_named_certificate_may_call_a_verb(serve, clients):
    address = serve(("kube-scheduler", "spiffe://cluster.local/kube-scheduler", "fd00:0::1"))
    for name, tls in clients.items():
        admitted = name in ("kube-scheduler", "workload", "address")
        assert refused(address, tls) == (set() if admitted else set(VERBS)), name


def test_pages_have_names_of_their_own(serve, clients):
    address = serve(("kube-scheduler",), ("prometheus",))
    assert refused(address, clients["kube-scheduler"]) == set(PAGES)
    assert refused(address, clients["prometheus"]) == set(VERBS)
    assert refused(address, clients["nameless"]) == {*VERBS, *PAGES}
    assert status(address, "/readyz", clients["nameless"]) == 200
    alone = serve(page_sans=("prometheus",))
    assert refused(alone, clients["nameless"]) == set(PAGES)


def test_without_names_every_certificate_of_the_ca_has_all_rights(serve, clients):
    address = serve()
    assert refused(address, clients["nameless"]) == set()


def test_a_client_without_tls_has_no_name(serve):
    """The program refuses such flags at its start; the routes would refuse each request, too."""
    assert refused(serve(("kube-scheduler",), tls=False)) == set(VERBS)


def test_a_refused_client_is_logged_by_its_names_once(serve, clients, caplog):
    address = serve(("kube-scheduler",))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert status(address, "/bind", clients["prometheus"]) == 403
    (record,) = [each for each in caplog.records if "may use this path" in each.message]
    assert (record.path, record.names) == ("/bind", "prometheus")


def test_a_body_of_a_refused_client_is_not_read(serve, clients):
    """It gets its answer before it has sent one byte of the body."""
    address = serve(("kube-scheduler",))
    with (
        connect(address) as raw,
        clients["prometheus"].wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(b"POST /filter HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        assert drain(tls).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("flag", ["--extender.client-san", "--web.pages-client-san"])
def test_names_that_nothing_verifies_are_refused_at_the_start(tmp_path, flag):
    started = ended(tmp_path, "127.0.0.1:0", f"{flag}=kube-scheduler")
    assert started.returncode == 1
    assert f"{flag} 'kube-scheduler': no client certificate is required" in started.stderr


@pytest.mark.parametrize("names", [(), ("kube-scheduler",)])
def test_the_program_warns_that_every_certificate_may_bind_pods(tmp_path, pki, names):
    """It ends at the next step, since there is no kubeconfig."""
    config = pki.requiring_clients("warned")
    flags = [f"--extender.client-san={name}" for name in names]
    started = ended(tmp_path, "0.0.0.0:0", f"--web.config.file={config}", *flags)
    assert ("any client certificate of the CA may bind pods" in started.stderr) is (not names)
    assert str(tmp_path / "none") in started.stderr
