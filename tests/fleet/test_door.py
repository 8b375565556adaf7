"""Who may look at the page on a laptop: whoever has the key that was printed."""

import re

import pytest

from fleet.door import Door
from fleet.main import _opening_file
from vgpu.web.message import HttpRequest, HttpResponse

OWN = {"host": "127.0.0.1:9404"}


@pytest.fixture
def door():
    return Door()


@pytest.fixture
def key(door):
    return re.search(r"key=([\w-]+)$", door.address("http://127.0.0.1:9404/"))[1]


def ask(door, path="/", query="", method="GET", **headers):
    shown = door.guarded(lambda _: HttpResponse(200))
    fields = {name.replace("_", "-"): text for name, text in headers.items()}
    return shown(HttpRequest(method, path, query, {**OWN, **fields}))


def entered(door, key, path="/"):
    """The cookie for the key."""
    answer = ask(door, path, f"key={key}")
    assert answer.status == 303
    headers = dict(answer.headers)
    assert headers["Location"] == path
    assert headers["Set-Cookie"].endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert headers["Referrer-Policy"] == "no-referrer"
    assert key not in str(answer)
    return headers["Set-Cookie"].partition(";")[0]


def test_the_key_becomes_a_cookie_and_works_once(door, key):
    cookie = entered(door, key, "/nodes")
    assert cookie.startswith("vgpu-fleet-9404=")
    assert ask(door, "/nodes", cookie=cookie).status == 200
    assert ask(door, query=f"key={key}").status == 403


def test_without_the_cookie_nothing_is_shown(door, key):
    for cookie in ("", "vgpu-fleet-9404=", "vgpu-fleet-9404=x", f"vgpu-fleet-9404={key}", "x=\xe9"):
        assert ask(door, cookie=cookie).status == 403
    assert ask(door, query="key=").status == 403
    assert ask(door, query=f"key={key}", method="HEAD").status == 403
    entered(door, key)  # nothing of this has used it up


def test_the_cookie_of_another_process_is_none(door, key):
    other = Door()
    other.address("http://127.0.0.1:9404/")
    assert ask(other, cookie=entered(door, key)).status == 403


@pytest.mark.parametrize(
    "host", ["localhost:9404", "127.0.0.1:9404", "[::1]:9404", "LOCALHOST:9404"]
)
def test_its_own_names_are_answered(door, key, host):
    assert ask(door, host=host, cookie=entered(door, key)).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example:9404", "127.0.0.1", "127.0.0.1:9405", "", "0.0.0.0:9404"]
)
def test_a_foreign_name_is_misdirected_even_with_the_cookie(door, key, host):
    assert ask(door, host=host, cookie=entered(door, key)).status == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:9404"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_what_another_page_asks_for_is_refused(door, key, headers):
    assert ask(door, cookie=entered(door, key), **headers).status == 403


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_what_its_own_page_or_the_person_asks_for_is_answered(door, key, site):
    cookie = entered(door, key)
    own = {"origin": "http://127.0.0.1:9404", "sec_fetch_site": site}
    assert ask(door, cookie=cookie, **own).status == 200


def test_the_key_leads_to_no_other_host(door, key):
    answer = ask(door, "//evil.example", f"key={key}")
    assert dict(answer.headers)["Location"] == "/"


def test_each_address_of_the_program_is_its_own():
    door = Door()
    printed = door.address("http://127.0.0.1:9404/", "http://[::1]:80/")
    cookie = entered(door, re.search(r"key=([\w-]+)$", printed)[1])
    for host in ("127.0.0.1:9404", "localhost:80", "[::1]", "127.0.0.1"):
        assert ask(door, host=host, cookie=cookie).status == 200
    assert ask(door, host="127.0.0.1:81", cookie=cookie).status == 421


def test_the_file_of_open_leads_to_the_page_by_a_page_of_its_own(door, key):
    cross = {"sec_fetch_site": "cross-site"}
    assert ask(door, query="key=x", **cross).status == 403
    answer = ask(door, query=f"key={key}", **cross)
    headers = dict(answer.headers)
    assert (answer.status, "Location" in headers) == (200, False)
    assert b'content="0;url=/"' in answer.body
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert ask(door, cookie=cookie, sec_fetch_site="same-origin").status == 200
    assert ask(door, query=f"key={key}", cookie=cookie, **cross).status == 403


def test_the_key_is_in_a_file_of_this_user_and_in_no_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with _opening_file("http://127.0.0.1:9404/?key=secret") as url:
        assert "secret" not in url
        (file,) = tmp_path.iterdir()
        assert url == file.as_uri()
        assert file.stat().st_mode & 0o777 == 0o600
        assert "key=secret" in file.read_text()
    assert not file.exists()
