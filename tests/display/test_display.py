"""gpu-manager's display: over gRPC with a real client, over HTTP with a real one, and as text."""

import json
import os
import socket
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict

from tests.support.environment import ROOT
from tests.support.topologies import ONE, TOPO6, tree_of
from tests.support.waiting import WAIT_SECONDS
from vgpu.io.unix_socket import SocketError
from vgpu.model.allocation import Share
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.topology import LinkLevel, TopologyGpu, grow
from vgpu.rpc import display_pb2 as pb
from vgpu.web.server import WebServer
from vgpucli.topology.command import routes
from vgpucli.topology.messages import (
    ContainerUse,
    DisplayState,
    GpuUse,
    PodUse,
    graph_text,
    usages_text,
)
from vgpucli.topology.service import DisplayServer

GIB = 2**30

GPUS = (
    TopologyGpu(0, 0, bus_id="0000:3B:00.0", memory_bytes=16 * GIB),
    TopologyGpu(1, 1, bus_id="0000:5B:00.0", memory_bytes=16 * GIB),
)
STATE = DisplayState(
    grow(GPUS, lambda *_: LinkLevel.PIX).holding([Share("/dev/nvidia0", 7680 * 2**20, 500)]),
    (
        PodUse(
            PodRef("uid-b", "ml", "half"),
            (
                ContainerUse("main", 500, 7680 * 2**20, (GpuUse(GPUS[0], 37, GIB, (5, 6)),)),
                ContainerUse("sidecar"),
            ),
        ),
        PodUse(
            PodRef("uid-a", "hpc", "two"),
            (
                ContainerUse(
                    "main",
                    cores_milli=2000,
                    gpus=(GpuUse(GPUS[0]), GpuUse(GPUS[1], 100, 3 * GIB + 5, (77,))),
                ),
            ),
            cluster="east",
            user="ada",
        ),
        PodUse(PodRef("uid-c", "ml", "waiting"), (ContainerUse("main", 100, 2**28),)),
    ),
    "v0.1.0",
)
EMPTY = DisplayState(tree_of(ONE), (), "v0.1.0")

USAGE = (
    b'{"usage":{"uid-a":{"stat":{"main":{"dev":['
    b'{"id":"0000:3B:00.0","card_idx":"0","device_mem":16384},'
    b'{"id":"0000:5B:00.0","card_idx":"1","gpu":100,"mem":3072,"pids":[77],"device_mem":16384}]}},'
    b'"project":"hpc","user":"ada","cluster":"east","spec":{"main":{"gpu":2,"mem":32768}}},'
    b'"uid-b":{"stat":{"main":{"dev":['
    b'{"id":"0000:3B:00.0","card_idx":"0","gpu":37,"mem":1024,"pids":[5,6],"device_mem":16384}]}},'
    b'"project":"ml","spec":{"main":{"gpu":0.5,"mem":7680},"sidecar":{}}}}}'
)
"""As grpc-gateway v1.12.1 with golang/protobuf v1.5.0 encodes the same messages."""

POOL = (("grpc.use_local_subchannel_pool", 1),)
"""The library's own pool remembers for a while that a path refused."""


def broken():
    raise SourceError(Reason.TIMEOUT, "nvml", "no answer before the deadline")


def test_the_committed_code_is_what_the_proto_gives(tmp_path):
    from grpc_tools import protoc

    known = Path(protoc.__file__).with_name("_proto")  # google/protobuf/empty.proto
    written = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    arguments = ["protoc", f"-I{ROOT}", f"-I{known}", *written, "vgpu/rpc/display.proto"]
    assert protoc.main(arguments) == 0
    for name in ("display_pb2.py", "display_pb2.pyi"):
        assert (tmp_path / "vgpu/rpc" / name).read_text() == (ROOT / "vgpu/rpc" / name).read_text()


def test_the_messages_have_the_originals_field_numbers():
    numbers = {
        message.name: {field.name: field.number for field in message.fields}
        for message in pb.DESCRIPTOR.message_types_by_name.values()
    }
    assert numbers == {
        "GraphResponse": {"graph": 1},
        "UsageResponse": {"usage": 1},
        "ContainerStat": {"stat": 1, "project": 2, "user": 3, "cluster": 4, "spec": 5},
        "Devices": {"dev": 1},
        "DeviceInfo": {
            "id": 1,
            "card_idx": 2,
            "gpu": 10,
            "mem": 11,
            "pids": 12,
            "device_mem": 13,
        },
        "Spec": {"gpu": 1, "mem": 2},
        "VersionResponse": {"version": 1},
    }


# ---------------------------------------------------------------- text


def test_half_a_gpu_with_thirty_blocks_is_shown_as_half_and_7680_mib():
    """T13."""
    spec = json.loads(usages_text(STATE))["usage"]["uid-b"]["spec"]["main"]
    assert spec == {"gpu": 0.5, "mem": 7680}


def test_whole_gpus_are_shown_with_all_their_memory_and_a_pod_without_gpus_is_not_shown():
    usage = json.loads(usages_text(STATE))["usage"]
    assert list(usage) == ["uid-a", "uid-b"]
    assert usage["uid-a"]["spec"] == {"main": {"gpu": 2, "mem": 32768}}


def test_the_graph_as_text_is_the_drawing_of_the_gpus():
    assert graph_text(DisplayState(tree_of(TOPO6), (), "")).startswith("ROOT:6\n|---CPU (aval: 6, ")
    assert graph_text(STATE).splitlines()[2] == (
        "|   |---GPU0 (pids: [], usedMemory: 0, totalMemory: 17179869184, "
        "allocatableCores: 50, allocatableMemory: 9126805504)"
    )


# ---------------------------------------------------------------- gRPC


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "gpu-manager.sock")


@pytest.fixture
def start(path):
    """Start a server for a state; it is stopped after the test."""
    started = []

    def serve(state):
        server = DisplayServer(state, path)
        server.start()
        started.append(server)
        return server

    yield serve
    for server in started:
        server.stop()


def call(path, method, answer):
    with grpc.insecure_channel(f"unix:{path}", options=POOL) as channel:
        ask = channel.unary_unary(
            f"/display.GPUDisplay/{method}",
            request_serializer=Empty.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return ask(Empty(), timeout=WAIT_SECONDS)


def test_a_client_of_gpu_manager_gets_its_messages(start, path):
    start(lambda: STATE)
    assert call(path, "PrintGraph", pb.GraphResponse).graph == graph_text(STATE)
    assert call(path, "Version", pb.VersionResponse).version == "v0.1.0"
    usage = call(path, "PrintUsages", pb.UsageResponse)
    assert usage.usage["uid-b"].stat["main"].dev[0].gpu == 37
    assert usage.usage["uid-b"].spec["main"].gpu == 0.5
    assert MessageToDict(usage, preserving_proto_field_name=True) == json.loads(USAGE)


def test_each_call_sees_the_newest_state(start, path):
    states = [STATE, EMPTY]
    start(lambda: states.pop(0))
    assert len(call(path, "PrintUsages", pb.UsageResponse).usage) == 2
    assert len(call(path, "PrintUsages", pb.UsageResponse).usage) == 0


def test_a_source_that_fails_is_unavailable_with_its_message(start, path):
    start(broken)
    with pytest.raises(grpc.RpcError) as error:
        call(path, "PrintGraph", pb.GraphResponse)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert error.value.details() == "nvml: no answer before the deadline"


def test_only_the_owner_of_the_socket_may_ask(start, path):
    previous = os.umask(0)  # the most generous one
    try:
        start(lambda: STATE)
    finally:
        os.umask(previous)
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_the_socket_is_gone_when_the_server_has_stopped(path):
    server = DisplayServer(lambda: STATE, path)
    server.start()
    assert Path(path).exists()
    server.stop()
    assert not Path(path).exists()


def test_a_socket_that_was_left_behind_is_replaced(start, path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    start(lambda: STATE)
    assert call(path, "Version", pb.VersionResponse).version == "v0.1.0"


def refusal(path):
    server = DisplayServer(lambda: EMPTY, path)
    with pytest.raises(SocketError) as error:
        server.start()
    server.stop()
    return error.value


def test_a_gpu_manager_that_still_runs_keeps_its_socket(start, path):
    start(lambda: STATE)
    assert "another server answers" in refusal(path).problem
    assert len(call(path, "PrintUsages", pb.UsageResponse).usage) == 2


def test_a_path_that_cannot_be_a_socket_is_reported(tmp_path):
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert "no socket" in refusal(str(tmp_path / "file")).problem
    assert "no socket" in refusal(str(tmp_path / "link")).problem
    assert "folder" in refusal(str(tmp_path / "missing" / "s.sock")).problem
    assert "107 bytes" in refusal(str(tmp_path / ("s" * 108))).problem
    assert refusal(str(tmp_path / "file" / "s.sock")).path.endswith("s.sock")
    assert (tmp_path / "file").read_bytes() == b"precious"


# ---------------------------------------------------------------- HTTP


@pytest.fixture
def get():
    """Ask a running server: status, content type and body."""
    started = []

    def fetch(state, path):
        server = WebServer(routes(state), ["127.0.0.1:0"])
        server.start()
        started.append(server)
        try:
            with urllib.request.urlopen(f"{server.urls[0]}{path}", timeout=WAIT_SECONDS) as reply:
                return reply.status, reply.headers["Content-Type"], reply.read()
        except HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read()

    yield fetch
    for server in started:
        server.stop(grace=1)


@pytest.mark.parametrize(
    ("state", "path", "body"),
    [
        (STATE, "/usage", USAGE),
        (STATE, "/version", b'{"version":"v0.1.0"}'),
        (STATE, "/graph", json.dumps({"graph": graph_text(STATE)}, separators=(",", ":")).encode()),
        (EMPTY, "/usage", b"{}"),
    ],
)
def test_the_pages_are_those_of_the_originals_gateway(get, state, path, body):
    assert get(lambda: state, path) == (200, "application/json", body)


def test_a_source_that_fails_is_a_503_in_the_gateways_form(get):
    status, kind, body = get(broken, "/usage")
    words = "nvml: no answer before the deadline"
    assert (status, kind) == (503, "application/json")
    assert json.loads(body) == {"error": words, "code": 14, "message": words}
