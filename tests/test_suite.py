"""The suite itself: every file has a place in it, and every thorough group has tests."""

import gc
import re
import select
import socket
import ssl
import struct
import subprocess
import sys

import pytest

from tests.support.environment import ROOT, without_pytest_options
from tests.support.schedule import LANE_OF, TOGETHER, Group
from tests.support.waiting import WAIT_SECONDS

TESTS = ROOT / "tests"
MAKEFILE = (ROOT / "Makefile").read_text()
FILES = {str(file.relative_to(TESTS).with_suffix("")): file for file in TESTS.rglob("test_*.py")}


def test_a_group_names_files_that_there_are():
    assert LANE_OF.keys() | TOGETHER.keys() <= FILES.keys()


def test_make_runs_every_thorough_group():
    (groups,) = re.findall(r"^GROUP +\?= (.*)$", MAKEFILE, re.MULTILINE)
    assert set(groups.split()) == set(Group)


@pytest.mark.parametrize("group", sorted(set(Group) - {Group.PROPERTIES, Group.BED}))
def test_a_thorough_group_has_tests(group):
    """The tests of the two other groups are recognised by their kind, not by a marker."""
    marker = f'pytest.mark.thorough("{group}"'
    assert any(marker in file.read_text() for file in FILES.values())


def test_the_pure_tests_of_make_check_are_folders():
    (folders,) = re.findall(r"^PURE +=.*tests/,(.*)\)$", MAKEFILE, re.MULTILINE)
    assert all((TESTS / folder).is_dir() for folder in folders.split())


def test_helpers_are_no_global_modules():
    """Every folder of the tests is a package, so that a helper's name begins with ``tests.``."""
    folders = {file.parent for file in TESTS.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_properties_leave_the_number_of_examples_to_the_profile():
    literal = re.compile(r"max_examples" "=")
    assert [name for name, file in FILES.items() if literal.search(file.read_text())] == []


def run(*command):
    """Run Python in the repository, without the caller's options of pytest; what it prints."""
    words = [sys.executable, *command]
    env = without_pytest_options()
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def collected(*arguments):
    """The tests of the fuzzers that these arguments choose."""
    listed = run("-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", *arguments, "tests/fuzz")
    return {line.partition("::")[2].partition("[")[0] for line in listed.stdout.splitlines()} - {""}


@pytest.mark.slow
def test_a_thorough_group_runs_its_tests_and_no_others():
    smaller, whole = "test_no_bytes_break_the_parser", "test_a_defect_in_the_parser_is_found"
    assert collected() == {smaller}
    assert collected("--thorough=fuzz") == {smaller, whole}


BURNER = """
import os, pathlib, sys, time
while time.process_time() < 1.5:
    pass
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
"""
SCRIPT = """
("$0" "$1" "$2" &)
until [ -s "$2" ]; do sleep 0.05; done
while kill -0 "$(cat "$2")" 2>/dev/null; do sleep 0.05; done
exit 3
"""
"""The burner's parent ends at once, so that another process has to wait for the burner: until then
its process id is taken.
"""


@pytest.mark.slow
def test_the_stopwatch_counts_orphaned_processes_and_returns_the_exit_status(tmp_path):
    burner, done = tmp_path / "burner.py", tmp_path / "done"
    burner.write_text(BURNER)
    command = ["sh", "-c", SCRIPT, sys.executable, str(burner), str(done)]
    ended = run("-m", "tests.support.stopwatch", "it", "1 min", "--", *command)
    assert ended.returncode == 3
    report = re.fullmatch(r"it: 0 min \d+ s wall \(bound: 1 min\), (\d+) s of CPU\n", ended.stdout)
    assert int(report[1]) >= 1


def test_a_socket_that_pythons_own_ssl_leaves_open_fails_no_test():
    """A server that is killed resets a connection before its handshake: whose test then runs?"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()
    poll = select.poll()
    poll.register(client, select.POLLHUP)
    assert poll.poll(WAIT_SECONDS * 1000)
    with pytest.raises(ConnectionResetError):
        ssl.create_default_context().wrap_socket(client, server_hostname="localhost")
    gc.collect()
