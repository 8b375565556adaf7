"""Processes of the client in C, and the files by which the daemon knows them."""

import contextlib
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from msgspec import structs

from kubeshare.node_files import GeminiFolder, GpuTable
from kubeshare.tenant_identity import TenantIdentity
from tests.support.environment import required_tool
from vgpu.schemes.kubeshare.gemini_config import (
    ClientPort,
    SharedPod,
    client_name,
    split_name,
)

SOURCE = Path(__file__).with_name("gemini_client.c")
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
UUID = "GPU-0a1b2c3d-0000-0000-0000-000000000001"
MIB = 1 << 20


def own_address():
    """A loopback address of this process alone: no other test has its ports."""
    pid = os.getpid()
    return f"127.{64 + (pid >> 16) % 64}.{pid >> 8 & 255}.{pid & 255}"


def compiled(source, *flags):
    """A program in C, compiled once per content."""
    compiler = required_tool("gcc", "gcc libc6-dev")
    digest = hashlib.sha256(source.read_bytes() + repr(flags).encode()).hexdigest()[:16]
    program = Path(tempfile.gettempdir(), f"vgpu-{source.stem}-{os.getuid()}-{digest}")
    if not program.exists():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "program")
            subprocess.run([compiler, *FLAGS, *flags, "-o", made, source], check=True)
            made.replace(program)
    return program


class Client:
    """One process; a context manager that ends it."""

    def __init__(self, port, *options, name="ns/a", address=None):
        self.process = subprocess.Popen(
            [compiled(SOURCE), *options, address or own_address(), str(port), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def send(self, line):
        self.process.stdin.write(f"{line}\n")

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, line):
        self.send(line)
        return self.answer()

    def end(self):
        """As a process ends by itself; returns its status."""
        self.process.stdin.close()
        return self.process.wait()


def pod(name, request=500, limit=1000, memory=1024 * MIB):
    return SharedPod("ns", name, request, limit, memory)


def write(folder, pods, ports=None, uuid=UUID, addresses=()):
    """The files as the node component writes them; ports from 50051 on, by pod."""
    if ports is None:
        ports = {each.pod: 50051 + number for number, each in enumerate(pods)}
    keys = {name: client_name("ns", name) for name in ports}
    lines = tuple(ClientPort(*split_name(keys[name]), port) for name, port in ports.items())
    shares = (structs.replace(each, **named(client_name("ns", each.pod))) for each in pods)
    who = tuple(TenantIdentity(keys[name], "ns", name, addresses) for name in ports)
    GeminiFolder(folder).write({uuid: GpuTable(tuple(shares), lines, who)})


def named(key):
    return dict(zip(("namespace", "pod"), split_name(key), strict=True))
