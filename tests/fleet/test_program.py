"""The program itself: who is let in on which addresses."""

import base64
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from tests.fleet.pages_of_dump import FLAGS
from tests.support.environment import ROOT
from tests.support.sample_cluster import items
from tests.support.web_helpers import Pki, hashed


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("authority"), "ca")


@pytest.fixture(scope="module")
def configs(authority, tmp_path_factory):
    """Web configurations by what they require."""
    folder = tmp_path_factory.mktemp("web")
    certificate, key = authority.issue("server")
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    users = {"alice": hashed("wonderland")}
    texts = {
        "nothing": {},
        "passwords without TLS": {"basic_auth_users": users},
        "TLS for everybody": {"tls_server_config": tls},
        "TLS and passwords": {"tls_server_config": tls, "basic_auth_users": users},
    }
    paths = {}
    for name, text in texts.items():
        paths[name] = folder / f"{name.replace(' ', '-')}.yaml"
        paths[name].write_text(json.dumps(text))
    return paths


@contextmanager
def running(*flags):
    """The address that the program prints."""
    words = [sys.executable, "-m", "vgpu", "fleet", *FLAGS, *map(str, flags)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r"https?://\S+", process.stdout.readline())[0]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def status(address, context=None, **headers):
    fields = {name.replace("_", "-"): text for name, text in headers.items()}
    try:
        request = urllib.request.Request(address, headers=fields)
        with urllib.request.urlopen(request, context=context) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_other_machines_are_refused_without_tls_and_a_proof_of_who_they_are(written, configs):
    words = [sys.executable, "-m", "vgpu", "fleet", "--from", written(items())]
    words += ["--web.listen-address", ":0"]
    wanting = ("nothing", "passwords without TLS", "TLS for everybody")
    chosen = [[], *(["--web.config.file", str(configs[name])] for name in wanting)]
    started = [
        subprocess.Popen([*words, *config], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for config in chosen
    ]
    for process in started:
        _, said = process.communicate()
        assert process.returncode == 1
        assert "--web.config.file has to require TLS" in said


def test_other_machines_are_let_in_with_a_password(written, configs, authority):
    flags = ("--web.listen-address", "0.0.0.0:0", "--web.config.file", configs["TLS and passwords"])
    with running("--from", written(items()), *flags) as address:
        assert "key=" not in address
        own = re.sub(r"//[^/]*:", "//localhost:", address)
        proof = base64.b64encode(b"alice:wonderland").decode()
        context = authority.client()
        assert status(own, context) == 401
        assert status(own, context, Authorization=f"Basic {proof}") == 200
        assert status(f"{own.rstrip('/')}/pods", context, Authorization=f"Basic {proof}") == 200


def test_on_this_machine_a_foreign_name_and_another_user_are_refused(written):
    with running("--from", written(items()), "--web.listen-address", "127.0.0.1:0") as address:
        own = address.partition("?")[0]
        assert status(own) == 403
        assert status(own, Host="rebound.example") == 421
        assert status(f"{own}healthz") == 200
        jar = urllib.request.HTTPCookieProcessor()
        opener = urllib.request.build_opener(jar)
        assert opener.open(address).status == 200
        with pytest.raises(urllib.error.HTTPError):
            opener.open(urllib.request.Request(own, headers={"Host": "rebound.example"}))
        assert status(address) == 403  # the key works once
