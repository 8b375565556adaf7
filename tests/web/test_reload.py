"""The web config file and its certificates are read again; a broken one changes nothing."""

import logging
import os
import ssl

import pytest

from tests.support.waiting import wait_for_tick
from tests.support.web_helpers import ConfigFile, basic, connect, endpoint, fetch, hashed
from vgpu.web.config import WebConfigFile


def users(**passwords):
    pairs = ", ".join(f"{user}: {hashed(password)}" for user, password in passwords.items())
    return f"basic_auth_users: {{{pairs}}}\n"


@pytest.fixture
def config(tmp_path):
    return ConfigFile(tmp_path / "web.yml", users(alice="one"))


@pytest.fixture
def address(serve, config):
    return serve(config=config.loaded).addresses[0]


def statuses(address, **passwords):
    return [fetch(address, headers=basic(user, word))[0] for user, word in passwords.items()]


def test_users_change_without_a_restart(config, address):
    assert statuses(address, alice="one", bob="two") == [200, 401]
    config.rewrite(users(alice="three", bob="two"))
    assert statuses(address, alice="one", bob="two") == [401, 200]
    assert statuses(address, alice="three") == [200]
    assert config.loaded.reloads == 1
    config.rewrite(users(bob="two"))
    assert set(config.loaded.current().users.memory._verified) == {b"bob"}


def test_the_file_is_looked_at_once_a_second_at_most(config, address):
    config.rewrite(users(bob="two"))
    config.clock.now = 0.5
    assert statuses(address, alice="one") == [200]
    config.clock.now = 1.0
    assert statuses(address, alice="one", bob="two") == [401, 200]


def test_an_unchanged_file_is_not_loaded_again(config):
    before = config.loaded.current()
    config.touch_clock()
    assert config.loaded.current() is before
    assert config.loaded.reloads == 0


def test_a_defect_while_reloading_does_not_stop_the_serving(config, address, monkeypatch):
    monkeypatch.setattr("vgpu.web.config._policy", None)
    config.rewrite(users(bob="two"))
    assert statuses(address, alice="one") == [200]
    assert not config.loaded.last_reload_ok


def test_a_verified_password_stays_verified_through_a_reload(config, address, monkeypatch):
    kept = config.path.read_text()
    assert statuses(address, alice="one") == [200]
    monkeypatch.setattr("vgpu.web.auth.bcrypt.checkpw", lambda password, stored: False)
    config.rewrite(kept + "http_server_config: {headers: {X-Frame-Options: deny}}\n")
    status, headers, _ = fetch(address, headers=basic("alice", "one"))
    assert (status, headers["X-Frame-Options"]) == (200, "deny")


def test_a_broken_file_keeps_the_old_one_and_is_logged_once(config, address, caplog):
    with caplog.at_level(logging.INFO, "vgpu.web.config"):
        config.rewrite("basic_auth_users: {alice: nonsense}")
        for _ in range(3):
            assert statuses(address, alice="one") == [200]
            config.touch_clock()
        assert not config.loaded.last_reload_ok
        assert config.loaded.reload_failures >= 3
        assert len(caplog.records) == 1
        assert "basic_auth_users.alice" in str(caplog.records[0].err)
        config.rewrite(users(bob="two"))
        assert statuses(address, alice="one", bob="two") == [401, 200]
    assert config.loaded.last_reload_ok
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_a_file_out_of_sight_keeps_the_old_one_until_it_is_back(serve, tmp_path):
    folder = tmp_path / "mount"
    folder.mkdir()
    config = ConfigFile(folder / "web.yml", users(alice="one"))
    address = serve(config=config.loaded).addresses[0]
    away = folder.rename(tmp_path / "away")
    config.touch_clock()
    assert statuses(address, alice="one") == [200]
    assert not config.loaded.last_reload_ok
    away.rename(folder)  # the very same file again
    config.touch_clock()
    assert statuses(address, alice="one") == [200]
    assert config.loaded.last_reload_ok


def test_a_rewrite_in_place_of_the_same_size_is_seen(config, address, tmp_path):
    text = config.path.read_text()
    status = config.path.stat()
    wait_for_tick(tmp_path)
    config.path.write_text(text.replace("alice", "carol"))
    os.utime(config.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    config.touch_clock()
    assert statuses(address, alice="one", carol="one") == [401, 200]


def pair_text(cert, key, *lines):
    return f"tls_server_config: {{{', '.join([f'cert_file: {cert}', f'key_file: {key}', *lines])}}}"


@pytest.mark.parametrize("lost", ["everything", "users", "tls", "client certificates", "sans"])
def test_a_reload_never_takes_a_protection_away(tmp_path, pki, server_pair, lost):
    cert, key = server_pair
    required = [f"client_ca_file: {pki.ca}", "client_auth_type: RequireAndVerifyClientCert"]
    password = users(alice="one")
    full = pair_text(cert, key, *required, "client_allowed_sans: [a]") + "\n" + password
    weaker = {
        "everything": "",
        "users": pair_text(cert, key, *required, "client_allowed_sans: [a]"),
        "tls": password,
        "client certificates": pair_text(cert, key) + "\n" + password,
        "sans": pair_text(cert, key, *required) + "\n" + password,
    }
    config = ConfigFile(tmp_path / "web.yml", full)
    before = config.loaded.current()
    config.rewrite(weaker[lost])
    assert config.loaded.current() is before
    assert not config.loaded.last_reload_ok
    WebConfigFile(str(config.path))  # a restart accepts it


def served_certificate(address):
    return ssl.get_server_certificate(endpoint(address))


def test_a_renewed_certificate_is_served_without_a_restart(serve, tmp_path, pki, caplog):
    cert, key = pki.issue("renewed")
    config = ConfigFile(tmp_path / "web.yml", pair_text(cert, key))
    address = serve(config=config.loaded).addresses[0]
    old = served_certificate(address)
    fresh_cert, fresh_key = (path.read_bytes() for path in pki.issue("fresh"))
    wait_for_tick(tmp_path)
    cert.write_bytes(fresh_cert)
    config.touch_clock()
    assert served_certificate(address) == old  # the key does not match yet
    assert not config.loaded.last_reload_ok
    wait_for_tick(tmp_path)
    key.write_bytes(fresh_key)
    config.touch_clock()
    assert served_certificate(address).encode() == fresh_cert
    assert config.loaded.last_reload_ok


def test_a_client_authority_that_was_replaced_is_no_longer_trusted(
    serve, tmp_path, pki, server_pair
):
    cert, key = server_pair
    authority = tmp_path / "ca.pem"
    authority.write_bytes(pki.ca.read_bytes())
    text = pair_text(
        cert, key, f"client_ca_file: {authority}", "client_auth_type: RequireAndVerifyClientCert"
    )
    config = ConfigFile(tmp_path / "web.yml", text)
    address = serve(config=config.loaded).addresses[0]
    client = pki.client(pki.issue("client"))
    assert fetch(address, tls=client)[0] == 200
    other = type(pki)(tmp_path, "another")
    wait_for_tick(tmp_path)
    authority.write_bytes(other.ca.read_bytes())
    config.touch_clock()
    with pytest.raises(OSError):
        fetch(address, tls=client)


def test_tls_that_comes_with_a_reload_ends_plain_connections(serve, tmp_path, pki, server_pair):
    config = ConfigFile(tmp_path / "web.yml", "")
    address = serve(config=config.loaded).addresses[0]
    with connect(address) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert sock.recv(65536).endswith(b"hello\n")
        config.rewrite(pair_text(*server_pair))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert sock.recv(65536) == b""
    assert fetch(address, tls=pki.client())[0] == 200


def test_the_rate_limit_goes_on_through_a_reload(serve, tmp_path):
    config = ConfigFile(tmp_path / "web.yml", "rate_limit: {interval: 1h, burst: 1}")
    address = serve(config=config.loaded).addresses[0]
    assert fetch(address)[0] == 200
    config.rewrite("rate_limit: {interval: 60m, burst: 1}\n")
    assert fetch(address)[0] == 429
    config.rewrite("rate_limit: {interval: 60m, burst: 2}\n")
    assert fetch(address)[0] == 200
