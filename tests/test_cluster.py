"""The API server's client against what a real one rarely answers: errors and broken bodies."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client

from vgpu.cluster import (
    MOST_WAIT_SECONDS,
    WATCH_SECONDS,
    WATCH_TIMEOUT,
    Cluster,
    ClusterError,
)
from vgpu.kube_json import EventType
from vgpu.reasons import Reason, SourceError


class Answers(ThreadingHTTPServer):
    """Gives the next of its answers to every request, and keeps the requests."""

    daemon_threads = True

    def __init__(self, answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = list(answers)
        self.requests = []

    def handle_error(self, request, client_address):
        """A client that has had enough is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        self.server.requests.append((self.command, parts.path, parse_qs(parts.query), body))
        status, headers, body = self.server.answers.pop(0)
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if headers.get("Connection") == "close":
            self.close_connection = True

    do_PATCH = do_GET  # noqa: N815  # http.server's name

    def log_message(self, *_):
        """Silence."""


def answer(content, status=200, **headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, body


def status(code, reason, message="", **metadata):
    return answer(
        {"kind": "Status", "reason": reason, "message": message, "metadata": metadata}, code
    )


def pod(name):
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {
            "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}]
        },
    }


def page(*names, token=""):
    return answer({"metadata": {"continue": token}, "items": [pod(name) for name in names]})


@contextmanager
def serving(*answers):
    """A client of a server with these answers, and the server."""
    with Answers(answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        try:
            with Cluster(client.Configuration(host=url)) as cluster:
                yield cluster, server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def waits(monkeypatch):
    """Seconds that were waited before a further try, in place of waiting."""
    waited = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", waited.append)
    return waited


def names(pages):
    return [each.ref.name for one in pages for each in one.pods]


# ---------------------------------------------------------------- pages


def test_pages_are_asked_for_one_by_one_with_the_token_of_the_last():
    with serving(page("a", token="1"), page("b", token="2"), page("c")) as (cluster, server):
        assert names(cluster.pods(field_selector="spec.nodeName=n")) == ["a", "b", "c"]
    queries = [query for _, _, query, _ in server.requests]
    assert [query.get("continue") for query in queries] == [None, ["1"], ["2"]]
    assert {tuple(query["fieldSelector"]) for query in queries} == {("spec.nodeName=n",)}
    assert {tuple(query["limit"]) for query in queries} == {("500",)}


def test_a_token_that_expires_on_the_way_is_replaced_by_the_servers_new_one():
    expired = status(410, "Expired", "too old", **{"continue": "fresh"})
    with serving(page("a", token="1"), expired, page("b")) as (cluster, server):
        assert names(cluster.pods()) == ["a", "b"]
    assert server.requests[-1][2]["continue"] == ["fresh"]


@pytest.mark.parametrize("token", ["", "1"])
def test_an_expired_list_that_cannot_go_on_is_an_error(token):
    """The same token again would expire for ever."""
    expired = status(410, "Expired", "too old", **{"continue": token})
    answers = page("a", token="1"), expired
    with serving(*answers) as (cluster, _), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert (info.value.status, info.value.reason) == (410, "Expired")


def test_share_pods_are_pods_and_none_where_kubeshare_is_not_installed():
    listed = answer({"items": [pod("shared")]})
    with serving(listed) as (cluster, server):
        assert [each.ref.name for each in cluster.sharepods()] == ["shared"]
    assert server.requests[0][1] == "/apis/kubeshare.nthu/v1/sharepods"
    with serving(answer(b"404 page not found\n", 404)) as (cluster, _):
        assert list(cluster.sharepods()) == []
    with serving(status(403, "Forbidden")) as (cluster, _), pytest.raises(ClusterError):
        list(cluster.sharepods())


def test_configmaps_are_none_if_there_is_none():
    told = answer({"metadata": {"name": "a"}, "data": {"k": "v"}})
    with serving(told, status(404, "NotFound"), status(403, "Forbidden")) as (cluster, _):
        assert cluster.config_map("ns", "a") == {"k": "v"}
        assert cluster.config_map("ns", "a") is None
        with pytest.raises(ClusterError):
            cluster.config_map("ns", "a")


def test_unhealthy_cards_are_found_among_the_configmaps():
    items = [
        {"metadata": {"name": "unhealthy-gpu-n1"}, "data": {"gpus": "0,1"}},
        {"metadata": {"name": "coredns"}, "data": {"Corefile": "."}},
    ]
    with serving(answer({"kind": "ConfigMapList", "items": items})) as (cluster, server):
        assert cluster.unhealthy_gpus() == {"n1": "0,1"}
    assert server.requests[0][1] == "/api/v1/namespaces/kube-system/configmaps"


def test_names_cannot_leave_their_place_in_a_path():
    with serving(status(404, "NotFound")) as (cluster, server), pytest.raises(ClusterError):
        cluster.node("../pods?watch=1")
    assert server.requests[0][1] == "/api/v1/nodes/..%2Fpods%3Fwatch%3D1"


# ---------------------------------------------------------------- a busy server


def test_a_busy_server_is_asked_again_after_the_time_that_it_names(waits):
    busy = answer(b"{}", 429, Retry_After="7")
    with serving(busy, page("a")) as (cluster, _):
        assert names(cluster.pods()) == ["a"]
    assert waits == [7]


def test_nobody_waits_for_an_hour_because_a_server_says_so(waits):
    with serving(answer(b"{}", 503, Retry_After="3600"), page("a")) as (cluster, _):
        assert names(cluster.pods()) == ["a"]
    assert waits == [MOST_WAIT_SECONDS]


def test_a_server_that_stays_busy_is_an_error_with_its_wish(waits):
    busy = status(429, "TooManyRequests", "try later")
    busy[1]["Retry-After"] = "5"
    with serving(*[busy] * 5) as (cluster, server), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert (info.value.status, info.value.reason, info.value.retry_after) == (
        429,
        "TooManyRequests",
        5.0,
    )
    assert len(server.requests) == 5


def test_a_write_is_never_tried_again(waits):
    busy = answer(b"{}", 429, Retry_After="1")
    with serving(busy) as (cluster, server), pytest.raises(ClusterError) as info:
        cluster.patch_node_status("n", [{"op": "remove", "path": "/a"}])
    assert info.value.status == 429
    assert [(method, path) for method, path, _, _ in server.requests] == [
        ("PATCH", "/api/v1/nodes/n/status")
    ]
    assert waits == []


def test_a_write_whose_answer_breaks_off_is_not_tried_again():
    broken = answer(b"{", Content_Length="100", Connection="close")
    with serving(broken) as (cluster, server), pytest.raises(ClusterError) as info:
        cluster.patch_node_status("n", [])
    assert info.value.reason == "Unreachable"
    assert len(server.requests) == 1


def test_a_dry_run_says_so_to_the_server():
    with serving(answer({"metadata": {"name": "n"}})) as (cluster, server):
        assert cluster.patch_node_status("n", [], dry_run=True).name == "n"
    assert server.requests[0][2] == {"dryRun": ["All"]}


# ---------------------------------------------------------------- what is no answer of Kubernetes

PROXY = b"<html><body>502 Bad Gateway \xff</body></html>"


def test_a_proxys_error_page_is_quoted(waits):
    with serving(*[answer(PROXY, 502)] * 5) as (cluster, _), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert (info.value.status, info.value.reason) == (502, "HTTP 502")
    assert "502 Bad Gateway" in info.value.message


def test_only_the_beginning_of_a_long_page_is_quoted():
    with serving(answer(b"x" * 10_000, 400)) as (cluster, _), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert len(info.value.message) == 200


def test_a_login_page_is_not_followed():
    elsewhere = answer(b"", 302, Location="http://127.0.0.1:1/login")
    with serving(elsewhere) as (cluster, server), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert info.value.status == 302
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body", [PROXY, b"", b"[]", b'{"items": 3}', b'{"items": [{"metadata": {}}]}', b"[" * 100_000]
)
def test_a_page_that_is_none_is_malformed_and_names_the_server(body):
    with serving(answer(body)) as (cluster, _), pytest.raises(SourceError) as info:
        list(cluster.pods())
    assert info.value.reason is Reason.MALFORMED
    assert info.value.subject == f"{cluster.server}/api/v1/pods"


@pytest.mark.parametrize(
    "read",
    [
        lambda cluster: cluster.node("n"),
        lambda cluster: cluster.capacity("n"),
        lambda cluster: list(cluster.nodes()),
        lambda cluster: list(cluster.sharepods()),
        lambda cluster: cluster.config_map("a", "b"),
        lambda cluster: cluster.unhealthy_gpus(),
        lambda cluster: list(cluster.watch_pods("1")),
        lambda cluster: cluster.patch_node_status("n", []),
    ],
)
def test_html_in_place_of_json_is_malformed_everywhere(read):
    with serving(answer(PROXY + b"\n")) as (cluster, _), pytest.raises(SourceError) as info:
        read(cluster)
    assert info.value.reason is Reason.MALFORMED


def test_a_body_that_breaks_off_is_read_again(waits):
    broken = answer(b'{"items": [', Content_Length="1000", Connection="close")
    with serving(broken, page("a")) as (cluster, _):
        assert names(cluster.pods()) == ["a"]


def test_a_body_that_always_breaks_off_is_unreachable(waits):
    broken = answer(b'{"items": [', Content_Length="1000", Connection="close")
    with serving(*[broken] * 5) as (cluster, _), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert info.value.reason == "Unreachable"
    assert cluster.server in info.value.message


def test_a_body_of_unknown_length_that_breaks_off_is_malformed():
    broken = answer(b'{"items": [', Content_Length=None, Connection="close")
    with serving(broken) as (cluster, _), pytest.raises(SourceError):
        list(cluster.pods())


# ---------------------------------------------------------------- watching


def line(kind, obj):
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def watch(*lines):
    return answer(b"".join(lines), Content_Length=None, Connection="close")


def test_a_watch_gives_events_and_bookmarks_until_the_server_ends_it():
    told = watch(
        line("ADDED", {"kind": "Pod", **pod("a")}),
        line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "9"}}),
    )
    with serving(told) as (cluster, server):
        events = list(cluster.watch_pods("7", field_selector="spec.nodeName=n"))
    assert [event.type for event in events] == [EventType.ADDED, EventType.BOOKMARK]
    assert events[1].resource_version == "9"
    query = server.requests[0][2]
    assert (query["resourceVersion"], query["allowWatchBookmarks"]) == (["7"], ["true"])


def test_an_event_is_told_as_soon_as_it_is_there():
    """In chunks, as the API server sends it, and as a proxy does that has put them together."""
    told = line("ADDED", {"kind": "Pod", **pod("a")})
    half = len(told) // 2
    parts = [told[:half], told[half:] + told]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    in_chunks = answer(chunks + b"0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked")
    unfinished = answer(told * 2, Content_Length="9999")  # and the connection stays open
    for each in (in_chunks, unfinished):
        with serving(each) as (cluster, _):
            events = cluster.watch_pods("1")
            assert [next(events).pod.ref.name for _ in range(2)] == ["a", "a"]
            events.close()


def test_a_watch_may_be_silent_as_long_as_the_server_keeps_it_open():
    assert WATCH_TIMEOUT.total is None
    assert WATCH_TIMEOUT.read_timeout > WATCH_SECONDS


def test_a_watch_that_is_too_old_is_an_error_in_the_stream_or_before_it():
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    with serving(watch(line("ERROR", gone)), status(410, "Expired")) as (cluster, _):
        for _ in range(2):
            with pytest.raises(ClusterError) as info:
                list(cluster.watch_pods("1"))
            assert (info.value.status, info.value.reason) == (410, "Expired")


@pytest.mark.parametrize(
    "broken",
    [
        {"Content_Length": "9999"},
        {"Content_Length": None, "Transfer_Encoding": "chunked"},
    ],
)
def test_a_watch_that_breaks_off_is_unreachable(broken):
    told = line("ADDED", {"kind": "Pod", **pod("a")})
    if "Transfer_Encoding" in broken:
        told = b"%x\r\n%s\r\n" % (len(told), told)
    with serving(answer(told, Connection="close", **broken)) as (cluster, _):
        events = cluster.watch_pods("1")
        assert next(events).pod.ref.name == "a"
        with pytest.raises(ClusterError) as info:
            next(events)
    assert info.value.reason == "Unreachable"


# ---------------------------------------------------------------- finding the server


def test_a_server_that_is_not_there_is_unreachable(waits):
    with serving() as (cluster, server):
        server.server_close()
    with pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert (info.value.status, info.value.reason) == (0, "Unreachable")
    assert cluster.server in info.value.message


KUBECONFIG = """
current-context: here
contexts:
- {name: here, context: {cluster: c, user: u}}
- {name: other, context: {cluster: d, user: u}}
clusters:
- {name: c, cluster: {server: "https://one:6443"}}
- {name: d, cluster: {server: "https://two:6443/"}}
users: [{name: u, user: {token: secret}}]
"""


@pytest.fixture
def no_cluster(monkeypatch, tmp_path):
    """No kubeconfig of the person who tests, and no pod."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_kubeconfig_is_found_by_flag_then_environment_then_home(no_cluster, monkeypatch):
    (no_cluster / ".kube").mkdir()
    (no_cluster / ".kube" / "config").write_text(KUBECONFIG.replace("one", "home"))
    named, told = no_cluster / "named", no_cluster / "told"
    named.write_text(KUBECONFIG)
    told.write_text(KUBECONFIG.replace("one", "environment"))
    assert Cluster.connect().server == "https://home:6443"
    monkeypatch.setenv("KUBECONFIG", str(told))
    assert Cluster.connect().server == "https://environment:6443"
    assert Cluster.connect(str(named)).server == "https://one:6443"
    assert Cluster.connect(str(named), "other").server == "https://two:6443"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "- a",
        "\x00",
        "apiVersion: v1",
        KUBECONFIG.replace("current-context: here", "current-context: nowhere"),
        KUBECONFIG.replace('server: "https://one:6443"', ""),
        KUBECONFIG.replace("clusters:", "clusters: 3\nothers:"),
        KUBECONFIG.replace("token: secret", "client-certificate: /none, client-key: /none"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_an_error_that_names_it(no_cluster, text):
    path = no_cluster / "config"
    path.write_text(text)
    with pytest.raises(ClusterError) as info:
        Cluster.connect(str(path))
    assert (info.value.status, info.value.reason) == (0, "NoConfiguration")
    assert str(path) in info.value.message


def test_a_kubeconfig_that_is_not_there_is_said_to_be_so(no_cluster, monkeypatch):
    with pytest.raises(ClusterError, match="/none: no such file"):
        Cluster.connect("/none")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(ClusterError, match="/nowhere: no such file"):
        Cluster.connect()
    monkeypatch.delenv("KUBECONFIG")
    with pytest.raises(ClusterError, match="pass --kubeconfig FILE or set KUBECONFIG"):
        Cluster.connect()


def test_in_a_pod_its_service_account_is_used(no_cluster, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    token, ca = no_cluster / "token", no_cluster / "ca.crt"
    token.write_text("secret")
    ca.write_text("certificate")
    loader = "kubernetes.config.incluster_config"
    monkeypatch.setattr(f"{loader}.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(f"{loader}.SERVICE_CERT_FILENAME", str(ca))
    assert Cluster.connect().server == "https://10.0.0.1:443"


def test_the_token_is_sent(no_cluster):
    class Keeping(Handler):
        def do_GET(self):
            self.server.sent = self.headers["Authorization"]
            super().do_GET()

    path = no_cluster / "config"
    with serving(page("a")) as (cluster, server):
        server.RequestHandlerClass = Keeping
        path.write_text(KUBECONFIG.replace("https://one:6443", cluster.server))
        with Cluster.connect(str(path)) as authorized:
            assert names(authorized.pods()) == ["a"]
    assert server.sent == "Bearer secret"
