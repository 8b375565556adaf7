"""Requests are parsed strictly, responses rendered as one byte string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.web.message import (
    MAX_FIELDS,
    MAX_HEAD,
    MAX_LINE,
    BadRequest,
    Head,
    HttpResponse,
    accepts_gzip,
    check_partial,
    parse_head,
    plain,
    render,
)

HOST = b"Host: a"


def lines(*parts):
    return b"\r\n".join(parts)


def test_a_request_of_prometheus_is_understood():
    head = parse_head(
        lines(
            b"GET /metrics?x=1&y HTTP/1.1",
            b"Host: 127.0.0.1:9394",
            b"User-Agent: Prometheus/2.42.0",
            b"Accept:  text/plain;version=0.0.4 \t",
            b"Accept-Encoding: gzip",
            b"accept-encoding: br",
        )
    )
    request = head.request
    assert (request.method, request.path, request.query) == ("GET", "/metrics", "x=1&y")
    assert request.headers["accept"] == "text/plain;version=0.0.4"
    assert request.headers["accept-encoding"] == "gzip, br"
    assert head.keep_alive
    assert not head.has_body


@pytest.mark.parametrize(
    ("request_line", "fields", "keep_alive"),
    [
        (b"GET / HTTP/1.1", [HOST], True),
        (b"GET / HTTP/1.1", [HOST, b"Connection: Close"], False),
        (b"GET / HTTP/1.1", [HOST, b"Connection: te, close"], False),
        (b"GET / HTTP/1.0", [], False),
    ],
)
def test_the_version_and_the_connection_header_decide_on_keep_alive(
    request_line, fields, keep_alive
):
    assert parse_head(lines(request_line, *fields)).keep_alive is keep_alive


def test_an_absolute_target_means_its_path():
    head = parse_head(lines(b"GET HTTP://node:9394/metrics?a HTTP/1.1", HOST))
    assert (head.request.path, head.request.query) == ("/metrics", "a")
    assert parse_head(lines(b"GET http://node HTTP/1.1", HOST)).request.path == "/"


@pytest.mark.parametrize(
    ("fields", "has_body"),
    [
        ([], False),
        ([b"Content-Length: 0"], False),
        ([b"Content-Length: 000"], False),
        ([b"Content-Length: 10"], True),
        ([b"Content-Length: " + b"9" * 6000], True),
        ([b"Transfer-Encoding: chunked"], True),
    ],
)
def test_a_body_is_recognised(fields, has_body):
    assert parse_head(lines(b"GET / HTTP/1.1", HOST, *fields)).has_body is has_body


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET /", 400),
        (b"GET  / HTTP/1.1\r\nHost: a", 400),
        (b"GET / extra HTTP/1.1\r\nHost: a", 400),
        (b"G(T / HTTP/1.1\r\nHost: a", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a", 400),
        (b"GET /\t HTTP/1.1\r\nHost: a", 400),
        (b"GET / FTP/1.1\r\nHost: a", 400),
        (b"GET / HTTP/2.0\r\nHost: a", 505),
        (b"GET / HTTP/1.1", 400),
        (b"GET / HTTP/1.1\nHost: a", 400),
        (b"GET / HTTP/1.1\r\nHost: a\rX: b", 400),
        (b"GET / HTTP/1.1\r\nHost: a\nX: b", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: b", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\tfolded", 400),
        (b"GET / HTTP/1.1\r\nHost : a", 400),
        (b"GET / HTTP/1.1\r\n: a", 400),
        (b"GET / HTTP/1.1\r\nHost", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x7f", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nAuthorization: x", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: \xb2", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length:", 400),
        (b"GET /" + b"x" * MAX_LINE + b" HTTP/1.1\r\nHost: a", 414),
        (b"GET / HTTP/1.1\r\nHost: a" + b"\r\nX: y" * MAX_FIELDS, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * MAX_HEAD, 431),
    ],
)
def test_an_ambiguous_or_oversized_request_is_refused(head, status):
    with pytest.raises(BadRequest) as refused:
        parse_head(head)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("received", "status"),
    [
        (b"\x16\x03\x01\x02\x00", 400),  # a TLS client
        (b"\r\nGET / HTTP/1.1", 400),
        (b"GET / HTTP/1.0\n\n", 400),
        (b"G" * (MAX_LINE + 1), 414),
        (b"GET / HTTP/1.1\r\n" + b"x" * MAX_HEAD, 431),
    ],
)
def test_a_hopeless_beginning_is_refused_at_once(received, status):
    with pytest.raises(BadRequest) as refused:
        check_partial(received)
    assert refused.value.status == status


@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.sampled_from(
                [b"GET ", b"/", b" HTTP/1.1", b"\r\n", b"Host: a", b"X", b":", b" ", b"\xff", b"\n"]
            ),
            max_size=12,
        ).map(b"".join),
    )
)
def test_any_bytes_are_a_request_or_a_refusal(raw):
    try:
        check_partial(raw)
        outcome = parse_head(raw)
    except BadRequest as refused:
        outcome = refused.status
    assert isinstance(outcome, Head) or outcome in (400, 414, 431, 505)


def test_a_response_is_rendered_with_what_http_asks_for():
    response = HttpResponse(200, (("Content-Type", "text/plain"),), b"abc")
    assert render(response, unix_time=784111777) == (
        b"HTTP/1.1 200 OK\r\nServer: vgpu\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
        b"Content-Length: 3\r\nConnection: keep-alive\r\nContent-Type: text/plain\r\n\r\nabc"
    )


def test_the_answer_to_head_has_the_length_but_not_the_body():
    rendered = render(plain(200, "abc"), unix_time=0, head_only=True, close=True)
    assert b"\r\nContent-Length: 4\r\nConnection: close\r\n" in rendered
    assert rendered.endswith(b"\r\n\r\n")


def test_the_operators_headers_replace_the_handlers():
    response = HttpResponse(200, (("x-frame-options", "sameorigin"), ("A", "b")))
    rendered = render(response, unix_time=0, policy=(("X-Frame-Options", "deny"),))
    assert b"sameorigin" not in rendered
    assert b"\r\nA: b\r\nX-Frame-Options: deny\r\n" in rendered


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (None, False),
        ("", False),
        ("identity", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=0, *", False),
        ("*", True),
        ("*;q=0", False),
        ("*;q=0, gzip", True),
        ("br, zstd", False),
        ("gzip;q=x", False),
        ("gzip;q=", False),
        (";;,,", False),
    ],
)
def test_gzip_is_used_only_where_it_is_accepted(header, accepted):
    assert accepts_gzip(header) is accepted


@given(st.text(alphabet="gzip*;q=0.1, x-nanf", max_size=40))
def test_any_accept_encoding_has_an_answer(header):
    assert accepts_gzip(header) in (True, False)
