"""The command's guards."""

import subprocess
import sys

import pytest

from scheduler.main import is_loopback
from tests.support.environment import ROOT

STRANGERS = [":0", "0.0.0.0:0", "[::]:0", "example.com:0"]
"""Addresses that other hosts reach."""


def ended(tmp_path, address, *flags):
    """The command in a process of its own: a program blocks signals. No API server is known."""
    command_line = [
        *(sys.executable, "-m", "vgpu", "scheduler", "--single", *flags),
        f"--web.listen-address={address}",
        f"--kubeconfig={tmp_path / 'none'}",
    ]
    return subprocess.run(command_line, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("address", STRANGERS)
def test_it_does_not_listen_for_strangers_without_client_certificates(tmp_path, address):
    refused = ended(tmp_path, address)
    assert refused.returncode == 1
    assert "client certificates" in refused.stderr
    assert repr(address).strip("'") in refused.stderr


def test_it_warns_at_start_what_listening_for_strangers_means(tmp_path):
    """With the flag it goes on: it ends at the next step, since there is no kubeconfig."""
    address = "0.0.0.0:0"
    started = ended(tmp_path, address, "--web.allow-anonymous")
    warning, *others = started.stderr.splitlines()
    assert "WARN" in warning.upper()
    assert "no client certificate is required" in warning
    assert "whoever reaches this port can bind pods to nodes" in warning
    assert address in warning
    assert "certificate" not in "".join(others)
    assert str(tmp_path / "none") in "".join(others)


def test_only_addresses_of_this_host_are_loopback():
    loopback = ("127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1")
    assert all(map(is_loopback, loopback))
    assert not any(map(is_loopback, (":1", "0.0.0.0:1", "[::]:1", "10.0.0.1:1", "a.b:1")))
