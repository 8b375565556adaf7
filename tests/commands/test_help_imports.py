"""What the help of each command imports: the help of a light command waits for flags only."""

import json
import subprocess
import sys

import pytest

from vgpucli.main import COMMANDS

SLOW = (
    "vgpu.ledger",
    "vgpu.inventory",
    "vgpu.schemes.registry",
    "vgpu.kube.decode",
    "exporter.main",
    "simulator",
    "rich",
    "urllib3",
    "ssl",
    "yaml",
    "grpc",
    "concurrent.futures",
)
"""Packages that take tens of milliseconds of CPU to import."""

NOT_LIGHT = {
    "device-plugin",
    "inspect",
    "fit",
    "quota",
    "doctor",
    "reconcile",
    "scheduler",
    "kubeshare",
    "feedback",
    "topology",
    "demo",
}
"""Commands whose module still has the program in it."""

PROGRAM = """
import json, os, sys
from vgpucli.main import COMMANDS, main

modules = {}
for name in COMMANDS:
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        main([name, "--help"], prog_name="vgpu", standalone_mode=False)
        with os.fdopen(write, "w") as pipe:
            json.dump(list(sys.modules), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        modules[name] = json.load(pipe)
    assert os.wait()[1] == 0, name
print(json.dumps(modules))
"""


@pytest.fixture(scope="module")
def modules_of_help():
    """The modules after the help of each command: one process imports what all of them need."""
    program = PROGRAM.replace("in COMMANDS:", f"in {sorted(COMMANDS.keys() - NOT_LIGHT)}:")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_the_help_of_a_light_command_imports_nothing_slow(modules_of_help):
    slow = {
        name: [
            module
            for module in modules
            if any(module == each or module.startswith(f"{each}.") for each in SLOW)
        ]
        for name, modules in modules_of_help.items()
    }
    assert slow.keys() >= {"top", "exporter", "fleet", "bill", "explain"}
    assert not {name: modules for name, modules in slow.items() if modules}
