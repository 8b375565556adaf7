"""A host with an NVIDIA driver: ELF files made by hand, links, and an ``ld.so.cache``.

host = DriverHost(root)
host.library("libcuda.so", soname="libcuda.so.1")
host.ldconfig()
"""

import itertools
import os
import struct

VERSION = "580.95.05"
FOLDERS = {64: "/usr/lib/x86_64-linux-gnu", 32: "/usr/lib/i386-linux-gnu"}

_PLAIN = {"libnvidia-glcore.so", "libnvidia-tls.so", "libnvidia-gpucomp.so"}
"""Libraries whose soname is their whole name, as NVIDIA makes them."""

_mtimes = itertools.count(1_600_000_000)


def elf(bits=64, soname="", needed=()):
    """A shared library of one segment: a dynamic table and its strings."""
    names = [b"", *(name.encode() for name in (soname, *needed))]
    strings = b"\0".join(names) + b"\0"
    offsets = list(itertools.accumulate((len(name) + 1 for name in names), initial=0))
    head, segment, word = (64, 56, "Q") if bits == 64 else (52, 32, "I")
    table_at = head + 2 * segment
    tags = [(1, offset) for offset in offsets[2 : 2 + len(needed)]]
    tags += [(14, offsets[1])] if soname else []
    size = (len(tags) + 3) * 2 * struct.calcsize(word)
    tags += [(5, table_at + size), (10, len(strings)), (0, 0)]  # DT_STRTAB, DT_STRSZ, DT_NULL
    table = b"".join(struct.pack(f"<2{word}", *tag) for tag in tags)
    total = table_at + len(table) + len(strings)
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    machine = 62 if bits == 64 else 3
    shape = f"<HHI3{word}I6H"
    header = struct.pack(shape, 3, machine, 1, 0, head, 0, 0, head, segment, 2, 0, 0, 0)
    whole = _segment(bits, 1, 0, total)
    dynamic = _segment(bits, 2, table_at, len(table))
    return ident + header + whole + dynamic + table + strings


def _segment(bits, kind, at, size):
    if bits == 64:
        return struct.pack("<IIQQQQQQ", kind, 5, at, at, at, size, size, 8)
    return struct.pack("<IIIIIIII", kind, at, at, at, size, size, 5, 4)


def cache(libraries, *, old=False):
    """An ``ld.so.cache``; ``old`` puts the format before glibc 2.2 in front."""
    front = b""
    if old:
        front = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + struct.pack("<iII", 1, 0, 0)
        front += bytes(-len(front) % 8)
    start = 48 + 24 * len(libraries)
    texts, entries = b"", b""
    for name, path in libraries:
        at = start + len(texts)
        texts += name.encode() + b"\0" + path.encode() + b"\0"
        entries += struct.pack("<iIIIQ", 0x303, at, at + len(name.encode()) + 1, 0, 0)
    header = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(libraries), len(texts), 2, 0)
    return front + header + entries + texts


class DriverHost:
    """A host's root with libraries in it, known to its loader after :meth:`ldconfig`."""

    def __init__(self, root):
        self.root = root
        self.known = []
        for folder in (*FOLDERS.values(), "/usr/bin", "/etc"):
            self.path(folder).mkdir(parents=True)
        (root / "lib").symlink_to("usr/lib")

    def path(self, inside):
        return self.root / inside.lstrip("/")

    def put(self, inside, content):
        """A file that changed."""
        path = self.path(inside)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
        at = next(_mtimes)
        os.utime(path, (at, at))
        return path

    def library(self, stem, *, version=VERSION, bits=64, soname=None, needed=()):
        """A library with the link of its soname; it is known by that."""
        name = f"{stem}.{version}"
        soname = (name if stem in _PLAIN else f"{stem}.1") if soname is None else soname
        self.put(f"{FOLDERS[bits]}/{name}", elf(bits, soname, needed))
        if soname != name:
            link = self.path(f"{FOLDERS[bits]}/{soname}")
            link.unlink(missing_ok=True)
            link.symlink_to(name)
        self.known = [pair for pair in self.known if pair[1] != f"{self.shown(bits)}/{soname}"]
        self.known.append((soname, f"{self.shown(bits)}/{soname}"))

    @staticmethod
    def shown(bits):
        """Where Debian's loader reports the library: /lib is a link."""
        return FOLDERS[bits].removeprefix("/usr")

    def ldconfig(self, **form):
        self.put("/etc/ld.so.cache", cache(self.known, **form))

    def driver(self, version=VERSION):
        """All that a driver brings, known to the loader."""
        for stem in ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"):
            self.library(stem, version=version)
        self.library("libnvidia-glcore.so", version=version)
        self.put("/usr/bin/nvidia-smi", b"#!/bin/sh\n")
        self.ldconfig()


def tree(folder):
    """All that is in a folder: path -> the content of a file, or where a link leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found
