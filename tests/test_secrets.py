"""No message, log line or traceback has a token, a password, or the URL of a webhook."""

import json
import os
import traceback

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reconciler.webhook import NotifyError, Webhook
from tests.kube.test_unusable_server import KUBECONFIG
from tests.reconciler.test_notify import DONE, SERVER, cycle
from tests.support.hostile_server import answering_all
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.kinds import NODES
from vgpu.model.reasons import SourceError
from vgpu.sources.http_access import BadOption, ClientOptions
from vgpu.sources.token_page import TokenPage
from vgpucli.main import main
from vgpucli.top.source import HttpSource, Unanswered

SECRET = "S3cr3t"
NOBODY = "127.0.0.1:1"

around = st.text(max_size=4) | st.sampled_from(
    ["\n", "\r\n", "\0", "\x1b", "\x80", "\u202e", "'", '"', "*", "&", "!", "%", "@", "[", "]", "#"]
)
secrets = st.builds("{}{}{}".format, around, st.just(SECRET), around)
many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def failure_text(call):
    """The text of a failure with its traceback; "" if there is none."""
    try:
        call()
    except (ClusterError, NotifyError, BadOption, SourceError, Unanswered, ValueError) as error:
        return "".join(traceback.format_exception(error))
    return ""


def user(**fields):
    return {"users": [{"name": "a", "user": fields}]}


def cluster(**fields):
    return {"clusters": [{"name": "a", "cluster": {"server": f"http://{NOBODY}", **fields}}]}


KUBECONFIGS = {
    "token": lambda secret: user(token=secret),
    "password": lambda secret: user(username="u", password=secret),
    "user name": lambda secret: user(username=secret, password="p"),
    "key": lambda secret: user(**{"client-key-data": secret, "client-certificate-data": secret}),
    "exec": lambda secret: user(exec={"env": [{"name": "X", "value": secret}]}),
    "list": lambda secret: user(token=[secret]),
    "server": lambda secret: cluster(server=f"https://u:{secret}@{NOBODY}"),
    "server's user": lambda secret: cluster(server=f"https://{secret}@[x"),
    "proxy": lambda secret: cluster(**{"proxy-url": f"http://u:{secret}@{NOBODY}"}),
    "bad proxy": lambda secret: cluster(**{"proxy-url": f"http://u:{secret}@[x"}),
}


@many
@given(secret=secrets, place=st.sampled_from(sorted(KUBECONFIGS)))
@example(secret="#S3cr3t", place="server")  # the URL's host is its user then
@example(secret="?S3cr3t", place="server")
@example(secret="/S3cr3t", place="server")
def test_no_secret_of_a_kubeconfig_is_printed(secret, place, tmp_path):
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    whole = {"current-context": "a", "contexts": [context], **cluster(), **user()}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({**whole, **KUBECONFIGS[place](secret)}))

    def ask():
        with ApiClient.connect(str(path), patience=0.2) as api:
            list(api.pages(NODES))

    text = failure_text(ask)
    assert SECRET not in text, text
    assert str(path) in text or NOBODY in text, text


@pytest.mark.parametrize("written", ["!S3cr3t", "*S3cr3t", "'S3cr3t", "[S3cr3t", "a: b: S3cr3t"])
def test_no_secret_of_a_kubeconfig_that_is_no_yaml_is_printed(written, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(f"users: [{{name: a, user: {{token: x}}}}]\nmore: {written}\n")
    text = failure_text(lambda: ApiClient.connect(str(path)))
    assert SECRET not in text
    assert f"{path} is not a usable kubeconfig: line " in text


@pytest.mark.parametrize("token", ["a\nS3cr3t", "S3cr3t\r\nX: y", "\u0100S3cr3t"])
def test_a_token_that_no_header_can_carry_is_one_line_that_names_the_file(token, tmp_path):
    path = tmp_path / "kubeconfig"
    config = yaml.safe_load(KUBECONFIG.format(server=f"http://{NOBODY}", user=""))
    path.write_text(json.dumps({**config, **user(token=token)}))
    for words in (["inspect"], ["fit", "--pod", "a/b"], ["doctor"], ["reconcile", "plan"]):
        result = CliRunner().invoke(main, [*words, "--kubeconfig", str(path)])
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)
        assert result.stderr == (
            f"Error: {path}: the user's token or password has line breaks or other characters that"
            " HTTP cannot carry\n"
        )


URLS = ("http://u:{}@h", "http://{}@[x", "http://u:{}@h:99999", "ftp://u:{}@h", "{}@h", "u:{}@h:x")
QUERIES = ("http://127.0.0.1:1/?token={}", "http://[x/?{}", "ftp://h/?{}")


@given(secrets, st.sampled_from(URLS + QUERIES), st.sampled_from(["--url", "--prometheus"]))
def test_no_password_in_a_url_is_printed(secret, form, flag):
    url = form.format(secret)
    for make in (lambda: HttpSource(url, ClientOptions(), 0.2, flag), lambda: TokenPage(url)):
        assert SECRET not in failure_text(make)


@pytest.mark.parametrize("form", URLS)
@pytest.mark.parametrize(
    "words",
    [
        ["top", "--once", "--url"],
        ["top", "--once", "--url", "http://127.0.0.1:1", "--url"],
        ["inspect", "--by", "team", "--exporter"],
        ["inspect", "--by", "team", "--prometheus"],
        ["exporter", "--simulate", "--once", "--collectors", "tokens", "--tokens.url"],
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_a_flag_with_a_password_in_its_url_is_one_line_that_names_the_flag(form, words):
    result = CliRunner().invoke(main, [*words, form.format(SECRET)])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert SECRET not in result.output
    assert words[-1] in result.stderr or words[0] == "exporter"


WEBHOOKS = (
    "https://[{}",
    "https://h:99999/{}",
    "https://h:{}/x",
    "https://u:{}@h/x",
    "http://127.0.0.1:1/{}",
    "http://127.0.0.1:1/?{}",
    "{}",
    "ftp://h/{}",
    "http://" + "a" * 64 + ".b/{}",
)


@many
@given(secret=secrets, form=st.sampled_from(WEBHOOKS))
def test_no_url_of_a_webhook_is_printed(secret, form, tmp_path, caplog):
    caplog.clear()
    path = tmp_path / "url"
    path.write_bytes(form.format(secret).encode())

    def send():
        Webhook.from_file(str(path), SERVER).post(cycle(outcomes=DONE))

    text = failure_text(send)
    assert SECRET not in text + "".join(str(vars(record)) for record in caplog.records)
    assert str(path) in text or len(caplog.records) == 1


@pytest.mark.parametrize("password", [b"S3cr3t\nx", b"\xffS3cr3t", b"S3cr3t\0"])
def test_no_password_of_a_file_is_printed(password, tmp_path):
    path = tmp_path / "password"
    path.write_bytes(password)
    access = ClientOptions(username="u", password_file=str(path))
    with answering_all(b"HTTP/1.1 401 S3cr3\r\n\r\n") as address:
        assert SECRET not in failure_text(
            lambda: HttpSource(address, access).get("/", "*/*", {}, "no")
        )


def test_a_user_name_that_cannot_be_sent_names_its_flag(tmp_path):
    (tmp_path / "password").write_text("p")
    for name in ("a:b", os.fsdecode(b"\xff")):
        access = ClientOptions(username=name, password_file=str(tmp_path / "password"))
        with pytest.raises(BadOption, match="--username"):
            HttpSource("http://h", access)


@pytest.mark.parametrize("place", ["http://u:S3cr3t@h/x?S3cr3t", "http://[S3cr3t"])
def test_a_redirection_shows_no_password(place, tmp_path):
    head = f"HTTP/1.1 302 x\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()
    path = tmp_path / "kubeconfig"
    with answering_all(head) as address:
        path.write_text(KUBECONFIG.format(server=f"http://{address}", user=""))
        result = CliRunner().invoke(main, ["inspect", "--kubeconfig", str(path)])
    assert "redirects to " in result.stderr
    assert SECRET not in result.stderr
