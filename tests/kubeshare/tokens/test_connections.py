"""The addresses on which the daemon listens, and those from which its peers come."""

import socket

import pytest
from click.testing import CliRunner

from kubeshare.tokens.connections import host_address, listening_socket, plain_address
from kubeshare.tokens.main import command


@pytest.mark.parametrize(
    ("host", "peers"),
    [("", ("127.0.0.1", "::1")), ("::1", ("::1",)), ("127.0.0.1", ("127.0.0.1",))],
)
def test_a_port_is_served_at_addresses_of_both_families(host, peers):
    with listening_socket(host, 0) as listening:
        listening.setblocking(True)
        for peer in peers:
            with socket.create_connection((peer, listening.getsockname()[1])):
                connected, address = listening.accept()
                connected.close()
                assert plain_address(address[0]) == peer


@pytest.mark.parametrize(
    ("text", "address"),
    [("", ""), ("10.0.0.7", "10.0.0.7"), ("FD00::07", "fd00::7"), ("[fd00::7]", "fd00::7")],
)
def test_an_address_to_listen_on(text, address):
    assert host_address(text) == address


@pytest.mark.parametrize("text", ["localhost", "10.0.0.7:50051", "[]", "10.0.0.0/8"])
def test_what_is_no_address_is_refused(text):
    result = CliRunner().invoke(command, ["--tenant-address", text])
    assert result.exit_code == 2
    assert f"'--tenant-address': {text!r} is no IPv4 or IPv6 address" in result.output
