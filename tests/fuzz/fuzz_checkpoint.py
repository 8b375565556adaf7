"""Coverage-guided fuzzing of the device checkpoint: ``fuzz_checkpoint.py -max_total_time=30``.

Whatever the bytes, the answer is grants or a SourceError. The first byte chooses what is fuzzed:
the file as such; a file whose checksum is right, to reach what lies behind it; an AllocResp.
Exits non-zero on a finding, which is left in a file ``crash-…``.
"""

import base64
import json
import os
import sys
import tempfile
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports():
    from vgpu.model.reasons import SourceError
    from vgpu.sources.kubelet_checkpoint import WireError, environment, parse_checkpoint

FILE = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r",'
    b'"DeviceIDs":{"-1":["a"]},"AllocResp":"CgYKAUsSAVY="}],'
    b'"RegisteredDevices":{"r":["a","b"]}},"Checksum":1}'
)
SEEDS = (
    b"\0" + FILE,
    b"\1\x02u\x01\x0a\x06\x0a\x01K\x12\x01V",
    b"\2\x0a\x06\x0a\x01K\x12\x01V\x12\x02\x0a\x00\x0b\x0c",
)


def a_whole_file(content):
    try:
        grants, rejections = parse_checkpoint(content)
    except SourceError:
        return
    assert len(rejections) <= len(grants)


def a_file_that_verifies(content):
    provider = atheris.FuzzedDataProvider(content)
    name = provider.ConsumeUnicodeNoSurrogates(16)
    ids = [name] * provider.ConsumeIntInRange(0, 3)
    shape = provider.PickValueInList([ids, {"-1": ids, "10": None}, None])
    entry = {
        "PodUID": name,
        "ContainerName": name,
        "ResourceName": name,
        "DeviceIDs": shape,
        "AllocResp": base64.b64encode(provider.ConsumeBytes(200)).decode(),
    }
    document = {
        "Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {name: ids}},
        "Checksum": -1,
    }
    try:
        parse_checkpoint(json.dumps(document).encode())
    except SourceError as error:
        document["Checksum"] = int(error.detail.rpartition(" ")[2])
    (grant,), _ = parse_checkpoint(json.dumps(document).encode())
    assert grant.pod_uid == name
    assert set(grant.device_ids) == set(ids if shape is not None else ())


def an_answer(content):
    try:
        env = environment(content)
    except WireError:
        return
    assert all(isinstance(text, str) for pair in env.items() for text in pair)


TARGETS = (a_whole_file, a_file_that_verifies, an_answer)


def one_input(content):
    if content:
        TARGETS[content[0] % len(TARGETS)](content[1:])


def main():
    """Fuzz in a child: libFuzzer ends its process without leaving time to remove the files."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(SEEDS):
            Path(corpus, str(number)).write_bytes(seed)
        child = os.fork()
        if child == 0:
            atheris.Setup([*sys.argv, "-max_len=1024", corpus], one_input)
            atheris.Fuzz()
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
