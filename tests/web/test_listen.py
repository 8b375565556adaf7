"""Listen addresses in Prometheus' notation; every failure names the flag and the address."""

import socket

import pytest

from tests.support.environment import own_loopback
from tests.support.waiting import WAIT_SECONDS
from tests.support.web_helpers import endpoint, fetch
from vgpu.web.listen import ListenError, bound_address, link_address, listen, parse_address


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        (":9394", ("", 9394)),
        ("0.0.0.0:9394", ("0.0.0.0", 9394)),
        ("[::]:9394", ("::", 9394)),
        ("[::1]:0", ("::1", 0)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address_is_parsed(address, parsed):
    assert parse_address(address) == parsed


@pytest.mark.parametrize(
    "address",
    [
        "", ":", "9394", "localhost", "localhost:http", "localhost:65536", "localhost:-1", ":1²",
        "::1:9394", "[::1]", "[::1:9394", "[localhost]:9394", "http://localhost:9394", "a b:1",
        "a/b:1", ":000001",
    ],
)  # fmt: skip
def test_a_malformed_address_names_the_flag(address):
    with pytest.raises(ListenError, match=r"--web\.listen-address") as refused:
        parse_address(address)
    assert repr(address) in str(refused.value)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0", ":0", "[::]:0"])
def test_every_notation_listens(address):
    with listen(address) as listener:
        host, port = endpoint(link_address(bound_address(listener)))
        socket.create_connection((host, port), timeout=WAIT_SECONDS).close()


def test_a_port_without_a_host_is_reached_over_both_protocols(serve):
    port = endpoint(serve(addresses=[":0"]).addresses[0])[1]
    assert fetch(f"127.0.0.1:{port}")[0] == 200
    assert fetch(f"[::1]:{port}")[0] == 200


def test_several_addresses_are_served(serve):
    server = serve(addresses=["127.0.0.1:0", "[::1]:0"])
    assert [fetch(address)[0] for address in server.addresses] == [200, 200]
    assert server.urls == tuple(f"http://{address}" for address in server.addresses)


def test_links_lead_to_this_host():
    assert link_address("0.0.0.0:9394") == "localhost:9394"
    assert link_address("[::]:9394") == "localhost:9394"
    assert link_address("10.0.0.1:9394") == "10.0.0.1:9394"


def test_a_port_in_use_is_a_clear_error_and_nothing_stays_bound(serve):
    taken = serve().addresses[0]
    with listen(f"{own_loopback()}:0") as probe:
        free = bound_address(probe)
    with pytest.raises(ListenError, match="already in use") as refused:
        serve(addresses=[free, taken])
    assert repr(taken) in str(refused.value)
    assert "--web.listen-address" in str(refused.value)
    listen(free).close()


def test_an_address_of_another_host_is_a_clear_error():
    with pytest.raises(ListenError, match="does not have that address"):
        listen("192.0.2.1:0")


def test_an_unknown_host_is_a_clear_error():
    with pytest.raises(ListenError, match="unknown host"):
        listen("no-such-host.invalid:0")


def test_no_address_at_all_is_a_clear_error(serve):
    with pytest.raises(ListenError, match="at least one"):
        serve(addresses=[])
