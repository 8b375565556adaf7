"""Passwords, the operator's headers and the rate limit, over a real socket."""

import threading

import pytest

from tests.support.waiting import wait_ended, wait_until
from tests.support.web_helpers import Clock, ConfigFile, basic, exchange, fetch, hashed, status_of
from vgpu.web import auth
from vgpu.web.ratelimit import RateLimiter

USERS = f"basic_auth_users: {{alice: {hashed('wonder:land')}, bób: {hashed('pässword')}}}"


@pytest.fixture
def hashings(monkeypatch):
    """Counts the bcrypt computations."""
    calls = []
    real = auth.bcrypt.checkpw

    def counting(password, stored):
        calls.append(stored)
        return real(password, stored)

    monkeypatch.setattr(auth.bcrypt, "checkpw", counting)
    return calls


@pytest.fixture
def guarded(serve, tmp_path):
    config = ConfigFile(tmp_path / "web.yml", USERS)
    return serve(config=config.loaded).addresses[0]


@pytest.mark.parametrize(("user", "password"), [("alice", "wonder:land"), ("bób", "pässword")])
def test_the_right_password_lets_in(guarded, user, password):
    assert fetch(guarded, headers=basic(user, password))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("alice", "wonder:land\0"),
        basic("mallory", "wonder:land"),
        basic("", ""),
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic YWxpY2U="},  # no colon
        {"Authorization": "Bearer abc"},
        {"Authorization": basic("alice", "wonder:land")["Authorization"][6:]},
    ],
)
def test_anything_else_is_401_and_asks_for_a_password(guarded, headers):
    status, answer, body = fetch(guarded, headers=headers)
    assert (status, body) == (401, b"Unauthorized\n")
    assert answer["WWW-Authenticate"].startswith("Basic realm=")


def test_without_a_password_nobody_learns_which_paths_exist(guarded):
    assert fetch(guarded, "/nope")[0] == 401
    assert fetch(guarded, "/", method="POST")[0] == 401
    assert fetch(guarded, "/nope", headers=basic("alice", "wonder:land"))[0] == 404


def test_a_verified_password_is_hashed_once(guarded, hashings):
    for _ in range(5):
        assert fetch(guarded, headers=basic("alice", "wonder:land"))[0] == 200
    assert len(hashings) == 1


def test_a_failure_is_never_remembered(guarded, hashings):
    for _ in range(3):
        assert fetch(guarded, headers=basic("alice", "wrong"))[0] == 401
    assert len(hashings) == 3
    assert fetch(guarded, headers=basic("alice", "wonder:land"))[0] == 200
    assert fetch(guarded, headers=basic("alice", "wrong"))[0] == 401


def test_an_unknown_user_costs_as_much_as_a_known_one(guarded, hashings):
    fetch(guarded, headers=basic("alice", "wrong"))
    fetch(guarded, headers=basic("mallory", "wrong"))
    known, unknown = hashings
    assert known[4:6] == unknown[4:6]


def test_clients_that_come_together_share_one_hashing(guarded, hashings, monkeypatch):
    statuses = []
    counting = auth.bcrypt.checkpw

    clients, all_came = 10, threading.Event()

    def come():
        # The semaphore's value is how many more may wait.
        if auth._waiting._value <= auth._MAX_WAITING - clients:
            all_came.set()
        return all_came.is_set()

    def slow(password, stored):
        wait_until(come, "all clients wait for the hashing", context=lambda: str(auth._waiting))
        return counting(password, stored)

    monkeypatch.setattr(auth.bcrypt, "checkpw", slow)
    threads = [
        threading.Thread(
            target=lambda: statuses.append(fetch(guarded, headers=basic("bób", "pässword"))[0])
        )
        for _ in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        wait_ended(thread, "a client is answered")
    assert statuses == [200] * clients
    assert len(hashings) <= auth._CONCURRENT_HASHES


def test_only_a_keyed_digest_of_one_password_per_user_is_kept():
    users = auth.BasicAuth({"a": hashed("secret")}, auth.VerifiedPasswords())
    assert users.check(basic("a", "secret")["Authorization"])
    assert users.check(basic("a", "secret\0secret")["Authorization"])  # the same to bcrypt
    ((user, digest),) = users.memory._verified.items()
    assert user == b"a"
    assert len(digest) == 32
    assert b"secret" not in digest


def test_what_bcrypt_ignores_is_ignored():
    users = auth.BasicAuth({"a": hashed("x" * 72)}, auth.VerifiedPasswords())
    assert users.check(basic("a", "x" * 100)["Authorization"])
    assert not users.check(basic("a", "x" * 71)["Authorization"])


def test_guessing_clients_do_not_lock_out_users_who_verified_before(guarded, monkeypatch):
    assert fetch(guarded, headers=basic("alice", "wonder:land"))[0] == 200
    full = threading.BoundedSemaphore(1)
    full.acquire()
    monkeypatch.setattr(auth, "_waiting", full)
    status, headers, _ = fetch(guarded, headers=basic("bób", "pässword"))
    assert (status, headers["Retry-After"]) == (503, "1")
    assert fetch(guarded, headers=basic("alice", "wonder:land"))[0] == 200


def test_the_configured_headers_are_on_every_response(serve, tmp_path):
    config = ConfigFile(
        tmp_path / "web.yml",
        "http_server_config: {headers: {X-Frame-Options: deny, X-XSS-Protection: ''}}",
    )
    address = serve(config=config.loaded).addresses[0]
    for path in ("/", "/nope"):
        headers = fetch(address, path)[1]
        assert headers["X-Frame-Options"] == "deny"
        assert "X-XSS-Protection" not in headers  # unset if blank
    assert b"X-Frame-Options: deny" in exchange(address, b"nonsense\r\n\r\n")


def test_requests_beyond_the_rate_are_429(serve, tmp_path):
    config = ConfigFile(tmp_path / "web.yml", f"rate_limit: {{interval: 1h, burst: 2}}\n{USERS}")
    address = serve(config=config.loaded).addresses[0]
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    assert [status_of(exchange(address, request)) for _ in range(4)] == [401, 401, 429, 429]
    assert fetch(address)[1]["Retry-After"] == "1"


def test_the_bucket_refills_up_to_the_burst():
    clock = Clock()
    limiter = RateLimiter(interval=0.5, burst=2, clock=clock)
    assert [limiter.allow() for _ in range(3)] == [True, True, False]
    clock.now += 0.5
    assert [limiter.allow() for _ in range(2)] == [True, False]
    clock.now += 3600
    assert [limiter.allow() for _ in range(3)] == [True, True, False]
