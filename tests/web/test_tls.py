"""Real handshakes: versions, ciphers, curves, and who is let in by certificate."""

import http.client
import itertools
import ssl
import threading

import pytest

from tests.support.waiting import WAIT_SECONDS, wait_until
from tests.support.web_helpers import (
    ConfigFile,
    Pki,
    connect,
    drain,
    endpoint,
    exchange,
    fetch,
    status_of,
)
from vgpu.web.server import Timeouts, plain

REFUSED = (OSError, http.client.HTTPException)


@pytest.fixture
def secured(serve, tmp_path, server_pair, pki):
    """Serve HTTPS with these further lines in tls_server_config; the address."""

    def start(*lines, **limits):
        cert, key = server_pair
        settings = [f"cert_file: {cert}", f"key_file: {key}", *lines]
        text = "tls_server_config:\n" + "".join(f"  {line}\n" for line in settings)
        config = ConfigFile(tmp_path / "web.yml", text)
        server = serve(config=config.loaded, **limits)
        assert server.urls[0].startswith("https://")
        return server.addresses[0]

    return start


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A client whose certificate comes from an authority that the server does not know."""
    return Pki(tmp_path_factory.mktemp("stranger"), "stranger").issue("client")


@pytest.fixture(scope="module")
def friend(pki):
    return pki.issue("friend", sans=["DNS:prometheus.local", "IP:fd00::1"])


@pytest.fixture(scope="module")
def identities(stranger, friend):
    return {"nobody": None, "stranger": stranger, "friend": friend}


def test_https_is_served_over_tls_1_3_by_default(secured, pki):
    address = secured()
    host, port = endpoint(address)
    connection = http.client.HTTPSConnection(host, port, context=pki.client(), timeout=WAIT_SECONDS)
    for _ in range(2):
        connection.request("GET", "/large")
        assert len(connection.getresponse().read()) == 60_000
    assert connection.sock.version() == "TLSv1.3"
    connection.close()


def test_http_2_is_declined_by_alpn(secured, pki):
    context = pki.client()
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, port = endpoint(secured())
    with connect(f"{host}:{port}") as raw, context.wrap_socket(raw, server_hostname=host) as sock:
        assert sock.selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize(
    ("line", "client", "served"),
    [
        ("min_version: TLS12", {"maximum_version": ssl.TLSVersion.TLSv1_2}, True),
        ("min_version: TLS13", {"maximum_version": ssl.TLSVersion.TLSv1_2}, False),
        ("max_version: TLS12", {"minimum_version": ssl.TLSVersion.TLSv1_3}, False),
        ("max_version: TLS13", {"minimum_version": ssl.TLSVersion.TLSv1_3}, True),
        # only TLS 1.3 suites named: nothing is left for TLS 1.2
        (
            "cipher_suites: [TLS_AES_128_GCM_SHA256]",
            {"maximum_version": ssl.TLSVersion.TLSv1_2},
            False,
        ),
    ],
)
def test_the_versions_are_enforced(secured, pki, line, client, served):
    address, context = secured(line), pki.client(**client)
    if served:
        assert fetch(address, tls=context)[0] == 200
    else:
        with pytest.raises(REFUSED):
            fetch(address, tls=context)


def test_only_the_named_ciphers_are_spoken(secured, pki):
    address = secured("cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]")
    context = pki.client(maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    assert fetch(address, tls=context)[0] == 200
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(REFUSED):
        fetch(address, tls=context)


@pytest.mark.parametrize(
    ("preference", "chosen"),
    [("true", "ECDHE-ECDSA-AES128-GCM-SHA256"), ("false", "ECDHE-ECDSA-AES256-GCM-SHA384")],
)
def test_whose_order_of_ciphers_counts_is_honoured(secured, pki, preference, chosen):
    address = secured(
        "cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]",
        f"prefer_server_cipher_suites: {preference}",
    )
    context = pki.client(maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256")
    with (
        connect(address) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as sock,
    ):
        assert sock.cipher()[0] == chosen


def test_only_the_named_curve_is_spoken(secured, pki):
    address = secured("curve_preferences: [CurveP384]")
    context = pki.client()
    context.set_ecdh_curve("secp384r1")
    assert fetch(address, tls=context)[0] == 200
    context.set_ecdh_curve("prime256v1")
    with pytest.raises(REFUSED):
        fetch(address, tls=context)


@pytest.mark.parametrize(
    ("kind", "admitted"),
    [
        ("NoClientCert", {"nobody", "stranger", "friend"}),
        ("VerifyClientCertIfGiven", {"nobody", "friend"}),
        ("RequireAndVerifyClientCert", {"friend"}),
    ],
)
def test_client_certificates_are_verified_as_configured(secured, pki, identities, kind, admitted):
    ca = [] if kind == "NoClientCert" else [f"client_ca_file: {pki.ca}"]
    address = secured(f"client_auth_type: {kind}", *ca)
    versions = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    for (name, identity), version in itertools.product(identities.items(), versions):
        context = pki.client(identity, maximum_version=version)
        if name in admitted:
            assert fetch(address, tls=context)[0] == 200
        else:
            with pytest.raises(REFUSED):
                fetch(address, tls=context)


@pytest.mark.parametrize(
    ("allowed", "admitted"),
    [
        ("[prometheus.local]", True),
        ("[other, 'fd00::1']", True),
        ("['fd00:0:0:0:0:0:0:1']", True),
        ("[PROMETHEUS.local, local, '*.local', friend]", False),
    ],
)
def test_only_allowed_names_are_let_in(secured, pki, friend, allowed, admitted):
    address = secured(
        f"client_ca_file: {pki.ca}",
        "client_auth_type: RequireAndVerifyClientCert",
        f"client_allowed_sans: {allowed}",
    )
    context = pki.client(friend)
    if admitted:
        assert fetch(address, tls=context)[0] == 200
    else:
        with pytest.raises(REFUSED):
            fetch(address, tls=context)


def test_every_kind_of_name_can_be_allowed(secured, pki):
    sans = ["email:sre@example.com", "URI:spiffe://cluster/prometheus", "IP:10.0.0.1"]
    identity = pki.issue("named", sans=sans)
    for san in sans:
        name = san.partition(":")[2]
        address = secured(
            f"client_ca_file: {pki.ca}",
            "client_auth_type: RequireAndVerifyClientCert",
            f"client_allowed_sans: ['{name}']",
        )
        assert fetch(address, tls=pki.client(identity))[0] == 200


def test_a_client_can_be_admitted_by_its_own_certificate(secured, pki, friend):
    address = secured(
        f"client_ca_file: {friend[0]}", "client_auth_type: RequireAndVerifyClientCert"
    )
    assert fetch(address, tls=pki.client(friend))[0] == 200
    with pytest.raises(REFUSED):
        fetch(address, tls=pki.client(pki.issue("colleague")))


def test_no_tls_1_3_session_is_resumed(secured, pki):
    context, session = pki.client(), None
    address = secured()
    for _ in range(2):
        with (
            connect(address) as raw,
            context.wrap_socket(raw, server_hostname="localhost", session=session) as sock,
        ):
            sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert sock.recv(65536).endswith(b"hello\n")
            assert not sock.session_reused
            session = sock.session
            assert not session.has_ticket


def test_plain_http_on_the_tls_port_is_answered_in_plain_http(secured):
    with connect(secured()) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = drain(sock)
    assert status_of(answer) == 400
    assert answer.endswith(b"this port speaks HTTPS; the request was plain HTTP\n")


def test_garbage_and_silence_on_the_tls_port_are_dropped(secured, pki):
    patient, hasty = secured(timeouts=Timeouts(head=3600)), secured(timeouts=Timeouts(head=0.2))
    assert exchange(patient, b"\x00" * 100) == b""
    assert exchange(patient, b"") == b""
    with connect(patient), connect(patient) as stalled:
        stalled.sendall(b"\x16\x03\x01\x02\x00")
        assert fetch(patient, tls=pki.client())[0] == 200  # nobody waits for their handshakes
    with connect(hasty) as silent, connect(hasty) as stalled:
        stalled.sendall(b"\x16\x03\x01\x02\x00")
        assert drain(silent) == b""
        drain(stalled)


def test_an_idle_tls_connection_ends_on_stop(serve, tmp_path, server_pair, pki):
    cert, key = server_pair
    text = f"tls_server_config: {{cert_file: {cert}, key_file: {key}}}"
    server = serve(config=ConfigFile(tmp_path / "web.yml", text).loaded)
    host, port = endpoint(server.addresses[0])
    connection = http.client.HTTPSConnection(host, port, context=pki.client(), timeout=WAIT_SECONDS)
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"hello\n"
    server.stop(grace=600)  # would hang
    assert not server._connections
    connection.close()


def test_a_request_in_flight_is_finished_encrypted_on_stop(serve, tmp_path, server_pair, pki):
    cert, key = server_pair
    text = f"tls_server_config: {{cert_file: {cert}, key_file: {key}}}"
    entered, leave = threading.Event(), threading.Event()

    def handler(request):
        entered.set()
        leave.wait(WAIT_SECONDS)
        return plain(200, "done")

    server = serve({"/": handler}, config=ConfigFile(tmp_path / "web.yml", text).loaded)
    host, port = endpoint(server.addresses[0])
    connection = http.client.HTTPSConnection(host, port, context=pki.client(), timeout=WAIT_SECONDS)
    connection.request("GET", "/")
    wait_until(entered.is_set, "the request is at work")
    ((served, _),) = server._connections.all()
    served.finish()
    leave.set()
    assert connection.getresponse().read() == b"done\n"
    connection.close()
