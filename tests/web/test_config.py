"""Which web config files are accepted: ours and promtool's verdicts, and the messages of errors."""

import os
import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from tests.support.environment import required_tool
from tests.support.web_helpers import hashed
from vgpu.web.config import WebConfigError, WebConfigFile
from vgpu.web.schema import Invalid, WebConfig, parse

HASH = hashed("x")
TLS = "cert_file: server.pem, key_file: server.key"
CA = "client_ca_file: good-ca.pem"
OPTIONAL = f"{TLS}, {CA}, client_auth_type: VerifyClientCertIfGiven"
REQUIRED = f"{TLS}, {CA}, client_auth_type: RequireAndVerifyClientCert"

CIPHER_13 = "TLS_AES_128_GCM_SHA256"

GOOD = {
    "empty": "",
    "comment": "# nothing\n",
    "null sections": "tls_server_config:\nhttp_server_config:\nbasic_auth_users:\n",
    "empty sections": "tls_server_config: {}\nbasic_auth_users: {}\n",
    "tls": f"tls_server_config: {{{TLS}}}",
    "tls 1.3": f"tls_server_config: {{{TLS}, min_version: TLS13}}",
    "tls 1.2": f"tls_server_config: {{{TLS}, max_version: TLS12}}",
    "null key": f"tls_server_config: {{{TLS}, client_ca_file: }}",
    "no client cert": f"tls_server_config: {{{TLS}, client_auth_type: NoClientCert}}",
    "verify if given": f"tls_server_config: {{{OPTIONAL}}}",
    "client cert": f"tls_server_config: {{{REQUIRED}}}",
    "cipher": f"tls_server_config: {{{TLS}, "
    "cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]}",
    "cipher of 1.3": f"tls_server_config: {{{TLS}, cipher_suites: [{CIPHER_13}]}}",
    "order": f"tls_server_config: {{{TLS}, prefer_server_cipher_suites: false}}",
    "curve": f"tls_server_config: {{{TLS}, curve_preferences: [CurveP384]}}",
    "http2": "http_server_config: {http2: true}",
    "no http2": "http_server_config: {http2: no}",
    "headers": "http_server_config: {headers: {X-Frame-Options: deny, X-XSS-Protection: '1', "
    "X-Content-Type-Options: nosniff, Strict-Transport-Security: max-age=1, "
    "Content-Security-Policy: \"default-src 'self'\"}}",
    "users": f"basic_auth_users: {{alice: {HASH}, bob: {HASH.replace('$2b', '$2y')}}}",
}

BAD = {
    "unknown section": ("foo: 1", "foo"),
    "unknown key": (f"tls_server_config: {{{TLS}, foo: 1}}", "tls_server_config.foo"),
    "unknown http key": ("http_server_config: {http3: true}", "http_server_config.http3"),
    "no mapping": ("- a", ""),
    "no yaml": ("a: [", ""),
    "a scalar": ("tls_server_config: on", "tls_server_config"),
    "section twice": (f"basic_auth_users: {{a: {HASH}}}\nbasic_auth_users: {{}}", ""),
    "user twice": (f"basic_auth_users: {{a: {HASH}, a: {HASH}}}", ""),
    "no key": ("tls_server_config: {cert_file: server.pem}", "tls_server_config.key_file"),
    "no cert": ("tls_server_config: {key_file: server.key}", "tls_server_config.cert_file"),
    "no pair": (
        f"tls_server_config: {{{CA}, client_auth_type: RequireAndVerifyClientCert}}",
        "tls_server_config.cert_file",
    ),
    "missing cert": (
        "tls_server_config: {cert_file: nope.pem, key_file: server.key}",
        "tls_server_config.cert_file",
    ),
    "missing key": (
        "tls_server_config: {cert_file: server.pem, key_file: nope.key}",
        "tls_server_config.key_file",
    ),
    "cert is no cert": (
        "tls_server_config: {cert_file: server.key, key_file: server.key}",
        "tls_server_config.cert_file",
    ),
    "key is no key": (
        "tls_server_config: {cert_file: server.pem, key_file: server.pem}",
        "tls_server_config.key_file",
    ),
    "key of another": (
        "tls_server_config: {cert_file: server.pem, key_file: other.key}",
        "tls_server_config.key_file",
    ),
    "broken cert": (
        "tls_server_config: {cert_file: broken.pem, key_file: server.key}",
        "tls_server_config.cert_file",
    ),
    "missing ca": (
        f"tls_server_config: {{{REQUIRED.replace('good-ca', 'nope')}}}",
        "tls_server_config.client_ca_file",
    ),
    "ca without use": (f"tls_server_config: {{{TLS}, {CA}}}", "tls_server_config.client_auth_type"),
    "unknown auth": (
        f"tls_server_config: {{{TLS}, client_auth_type: Maybe}}",
        "tls_server_config.client_auth_type",
    ),
    "unknown version": (
        f"tls_server_config: {{{TLS}, min_version: TLS9}}",
        "tls_server_config.min_version",
    ),
    "unknown cipher": (
        f"tls_server_config: {{{TLS}, cipher_suites: [TLS_FOO]}}",
        "tls_server_config.cipher_suites",
    ),
    "unknown curve": (
        f"tls_server_config: {{{TLS}, curve_preferences: [P1]}}",
        "tls_server_config.curve_preferences",
    ),
    "bool as string": ("http_server_config: {http2: 'true'}", "http_server_config.http2"),
    "unknown header": (
        "http_server_config: {headers: {X-Foo: a}}",
        "http_server_config.headers.X-Foo",
    ),
    "header value": (
        "http_server_config: {headers: {X-Frame-Options: maybe}}",
        "http_server_config.headers.X-Frame-Options",
    ),
    "password in the clear": ("basic_auth_users: {alice: hunter2}", "basic_auth_users.alice"),
    "user without hash": ("basic_auth_users: {alice: }", "basic_auth_users[...]"),
}

# promtool accepts these (some only in newer releases); we do not, and docs say why.
STRICTER = {
    "two documents": ("basic_auth_users: {}\n---\nfoo: 1\n", ""),
    "settings without tls": (
        "tls_server_config: {min_version: TLS13}",
        "tls_server_config.cert_file",
    ),
    "inline and file": (
        f"tls_server_config: {{{TLS}, cert: abc}}",
        "tls_server_config.cert",
    ),
    "encrypted key": (
        "tls_server_config: {cert_file: server.pem, key_file: encrypted.key}",
        "tls_server_config.key_file",
    ),
    "tls 1.0": (
        f"tls_server_config: {{{TLS}, min_version: TLS10}}",
        "tls_server_config.min_version",
    ),
    "versions crossed": (
        f"tls_server_config: {{{TLS}, min_version: TLS13, max_version: TLS12}}",
        "tls_server_config.min_version",
    ),
    "cipher without forward secrecy": (
        f"tls_server_config: {{{TLS}, cipher_suites: [TLS_RSA_WITH_AES_128_GCM_SHA256]}}",
        "tls_server_config.cipher_suites",
    ),
    "no cipher left": (
        f"tls_server_config: {{{TLS}, max_version: TLS12, cipher_suites: [{CIPHER_13}]}}",
        "tls_server_config.cipher_suites",
    ),
    "two curves": (
        f"tls_server_config: {{{TLS}, curve_preferences: [X25519, CurveP256]}}",
        "tls_server_config.curve_preferences",
    ),
    "request client cert": (
        f"tls_server_config: {{{TLS}, {CA}, client_auth_type: RequestClientCert}}",
        "tls_server_config.client_auth_type",
    ),
    "any client cert": (
        f"tls_server_config: {{{TLS}, {CA}, client_auth_type: RequireAnyClientCert}}",
        "tls_server_config.client_auth_type",
    ),
    "verify by public CAs": (
        f"tls_server_config: {{{TLS}, client_auth_type: RequireAndVerifyClientCert}}",
        "tls_server_config.client_ca_file",
    ),
    "ca is no ca": (
        f"tls_server_config: {{{REQUIRED.replace('good-ca.pem', 'server.key')}}}",
        "tls_server_config.client_ca_file",
    ),
    "sans of nobody": (
        f"tls_server_config: {{{REQUIRED}, client_allowed_sans: []}}",
        "tls_server_config.client_allowed_sans",
    ),
    "sans without certificate": (
        f"tls_server_config: {{{OPTIONAL}, client_allowed_sans: [a]}}",
        "tls_server_config.client_auth_type",
    ),
    "header on two lines": (
        'http_server_config: {headers: {X-XSS-Protection: "1\\r\\nA: b"}}',
        "http_server_config.headers.X-XSS-Protection",
    ),
    "salt that bcrypt refuses": (
        f"basic_auth_users: {{alice: $2b$04$aaaaaaaaaaaaaaaaaaaaaa{'a' * 31}}}",
        "basic_auth_users.alice",
    ),
    "colon in a name": (f"basic_auth_users: {{'a:b': {HASH}}}", "basic_auth_users"),
    "unprintable name": (f'basic_auth_users: {{"\\ud800": {HASH}}}', "basic_auth_users"),
    "no duration": ("rate_limit: {interval: 1, burst: 1}", "rate_limit.interval"),
    "no burst": ("rate_limit: {interval: 1s}", "rate_limit.burst"),
    "negative burst": ("rate_limit: {interval: 1s, burst: -1}", "rate_limit.burst"),
    "wrong tag": ("http_server_config: {http2: !!bool perhaps}", ""),
    "nested too deep": ("[" * 5_000, ""),
}

# Keys that promtool 2.42 does not know yet.
NEWER = {
    "sans": f"tls_server_config: {{{REQUIRED}, client_allowed_sans: [a]}}",
    "rate limit": "rate_limit: {interval: 1m30s, burst: 20}",
    "rate limit off": "rate_limit: {interval: 0}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pki):
    path = tmp_path_factory.mktemp("config")
    for name in ("server", "other"):
        for file in pki.issue(name):
            shutil.copy(file, path)
    shutil.copy(pki.ca, path)
    certificate = (path / "server.pem").read_text().splitlines(keepends=True)
    (path / "broken.pem").write_text(certificate[0] + "".join(certificate[2:]))
    encrypted = serialization.BestAvailableEncryption(b"passphrase")
    (path / "encrypted.key").write_bytes(
        serialization.load_pem_private_key((path / "server.key").read_bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted
        )
    )
    return path


def write(folder, text):
    path = folder / "web.yml"
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def promtool():
    program = required_tool("promtool", "prometheus")

    def verdict(path):
        command = [program, "check", "web-config", path]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    return verdict


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_good_file_is_accepted_as_by_promtool(folder, promtool, text):
    path = write(folder, text)
    assert promtool(path)
    WebConfigFile(str(path))


@pytest.mark.parametrize(("text", "key"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_as_by_promtool(folder, promtool, text, key):
    path = write(folder, text)
    assert not promtool(path)
    with pytest.raises(WebConfigError) as refused:
        WebConfigFile(str(path))
    assert refused.value.key == key
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(("text", "key"), STRICTER.values(), ids=STRICTER)
def test_what_cannot_be_honoured_is_refused(folder, text, key):
    with pytest.raises(WebConfigError) as refused:
        WebConfigFile(str(write(folder, text)))
    assert refused.value.key == key


@pytest.mark.parametrize("text", NEWER.values(), ids=NEWER)
def test_keys_of_newer_toolkits_are_accepted(folder, text):
    WebConfigFile(str(write(folder, text)))


def test_certificates_may_be_inline(folder):
    def block(name):
        return "\n".join(f"    {line}" for line in (folder / name).read_text().splitlines())

    text = (
        "tls_server_config:\n"
        f"  cert: |\n{block('server.pem')}\n"
        f"  key: |\n{block('server.key')}\n"
        f"  client_ca: |\n{block('good-ca.pem')}\n"
        "  client_auth_type: RequireAndVerifyClientCert\n"
    )
    assert WebConfigFile(str(write(folder, text))).current().tls is not None


def test_relative_paths_are_relative_to_the_file(folder, monkeypatch, tmp_path):
    path = write(folder, GOOD["tls"])
    monkeypatch.chdir(tmp_path)
    assert WebConfigFile(str(path)).current().tls is not None
    monkeypatch.chdir(folder)
    assert WebConfigFile("web.yml").current().tls is not None


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "huge", "nul"])
def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path, kind):
    path = tmp_path / ("web\0.yml" if kind == "nul" else "web.yml")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "huge":
        path.write_bytes(b"#" * 2_000_000)
    with pytest.raises(WebConfigError, match=r"--web\.config\.file .*cannot be read"):
        WebConfigFile(str(path))


def test_no_error_repeats_a_secret(folder):
    secret = "hunter2hunter2"
    for text in (
        f"basic_auth_users: {{alice: {secret}}}",
        f"basic_auth_users: {{alice: *{secret}}}",
        f"basic_auth_users: {{alice: '{secret}",
        f"basic_auth_users:\n  alice: {secret}\n bob: {secret}\n",
        f"tls_server_config: {{cert_file: server.pem, key: {secret}}}",
        f"basic_auth_users: {{alice: [{secret}]}}",
    ):
        with pytest.raises(WebConfigError) as refused:
            WebConfigFile(str(write(folder, text)))
        assert secret not in str(refused.value)


@given(
    st.one_of(
        st.binary(max_size=60),
        st.text(max_size=60).map(lambda text: text.encode(errors="replace")),
        st.lists(
            st.sampled_from(
                ["tls_server_config", "rate_limit", "interval", ": ", "\n", "  ", "{", "}", "[",
                 "!!bool ", "!!timestamp ", "!!map ", "!!int ", "&a ", "*a", "<<", "? ", "1e9", "~",
                 '"', "2001-99-99", "basic_auth_users", "headers", "- "]
            ),
            max_size=14,
        ).map(lambda parts: "".join(parts).encode()),
    )
)  # fmt: skip
def test_any_bytes_are_a_config_or_an_error(text):
    try:
        outcome = parse(text)
    except Invalid as error:
        outcome = error
    assert isinstance(outcome, WebConfig | Invalid)


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [("1s", 1.0), ("500ms", 0.5), ("1m30s", 90.0), ("1.5h", 5400.0), ("10us", 1e-5), ("0s", 0.0)],
)
def test_durations_are_gos(interval, seconds):
    config = parse(f"rate_limit: {{interval: {interval}, burst: 1}}".encode())
    assert config.rate_limit.seconds() == pytest.approx(seconds)
