"""Debian's Prometheus scrapes the real exporter over TLS, with a certificate and a password."""

import ssl

import pytest

from simulator.demo import demo
from tests.support.bed.monitoring import Prometheus
from tests.support.live import LiveExporter
from tests.support.web_helpers import Pki, basic, hashed

pytestmark = pytest.mark.slow


@pytest.fixture
def pki(tmp_path):
    return Pki(tmp_path, "test")


@pytest.fixture
def config(tmp_path, pki):
    certificate, key = pki.issue("server")
    file = tmp_path / "web.yml"
    file.write_text(
        "tls_server_config:\n"
        f"  cert_file: {certificate.name}\n"
        f"  key_file: {key.name}\n"
        f"  client_ca_file: {pki.ca.name}\n"
        "  client_auth_type: RequireAndVerifyClientCert\n"
        f"basic_auth_users:\n  prometheus: {hashed('secret')}\n"
    )
    return file


@pytest.fixture
def identity(pki):
    return pki.issue("prometheus")


@pytest.fixture
def secured(tmp_path, pki, config, identity):
    flags = (f"--web.config.file={config}", "--sample.interval=200ms")
    live = LiveExporter(tmp_path, demo(), *flags)
    live.tls = pki.client(identity)
    live.headers = basic("prometheus", "secret")
    with live:
        yield live


def test_prometheus_scrapes_it_and_others_do_not(secured, tmp_path, pki, identity):
    folder = tmp_path / "prometheus"
    folder.mkdir()
    certificate, key = map(str, identity)
    job = {
        "scheme": "https",
        "tls_config": {"ca_file": str(pki.ca), "cert_file": certificate, "key_file": key},
        "basic_auth": {"username": "prometheus", "password": "secret"},
    }
    with Prometheus(folder, f"localhost:{secured.port}", **job) as prometheus:
        prometheus.wait_for("vgpu_container_memory_used_bytes")
        assert prometheus.wait_for("up == 1")
        assert prometheus.value("vgpu_web_config_last_reload_successful") == 1
    secured.headers = basic("prometheus", "guess")
    assert secured.get("/metrics").status == 401
    secured.tls = pki.client()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        secured.get("/metrics")


def test_a_broken_change_is_reported_and_the_old_file_stays_in_force(secured, config):
    good = config.read_text()
    config.write_text(good + "nonsense: 1\n")
    name = "vgpu_web_config_last_reload_successful"
    series = secured.wait_for(lambda s: s[name] == 0, "the failure")
    assert series["vgpu_web_config_reload_failures_total"] >= 1
    config.write_text(good)
    secured.wait_for(lambda s: s[name] == 1, "the repair")
