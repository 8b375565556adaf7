"""`make test` sets up what it needs: which packages, when, and what it never does to a machine.

The programs that would change this machine are fakes in front of PATH; `tests/release` runs
the real ones on a clean Debian.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.support.environment import ROOT, without_pytest_options

MAKEFILE = (ROOT / "Makefile").read_text()
TABLE = re.search(r"^define CI_PACKAGES\n(.*?)\nendef$", MAKEFILE, re.MULTILINE | re.DOTALL)[1]
PACKAGES = [package for line in TABLE.splitlines() for package in line.partition(":")[0].split()]

TWO_GROUPS = """\
prometheus: dashboards (tests/grafana)
containerd runc: a real Kubernetes (tests/cluster)"""


class Machine:
    """A machine as setup.sh sees it; what it asked of apt and of the init system."""

    def __init__(self, folder):
        self.folder, self.programs, self.log = folder, folder / "bin", folder / "log"
        self.programs.mkdir()
        (folder / "usr" / "sbin").mkdir(parents=True)
        self.policy = folder / "usr" / "sbin" / "policy-rc.d"
        self.log.touch()
        self.program("id", "echo 0")
        self.program("dpkg-query", self.dpkg_query())
        for name in ("apt-get", "systemctl", "update-rc.d"):
            self.program(name, "")

    def program(self, name, script):
        path = self.programs / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{script}\n')
        path.chmod(0o755)

    def dpkg_query(self, installed=(), files=()):
        """``dpkg-query`` of a machine with these packages, which have these files."""
        return f"""for package; do :; done
case $1 in
-L) printf '%s\\n' {" ".join(files)} ;;
*) case " {" ".join(installed)} " in *" $package "*) printf 'ii ' ;; *) exit 1 ;; esac ;;
esac"""

    def plan(self, *lines, package="containerd"):
        """Let apt plan these lines for what has this package, and install whatever is asked."""
        text = "\\n".join(lines)
        self.program("apt-get", f"case \"$*\" in -s*{package}*) printf '{text}\\n' ;; esac")

    def setup(self, purpose="test", table=TWO_GROUPS, **env):
        return subprocess.run(
            [ROOT / "tests" / "support" / "setup.sh", purpose],
            env={
                "PATH": f"{self.programs}:/usr/bin:/bin",
                "DPKG_ROOT": str(self.folder),
                "CI_PACKAGES": table,
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def asked(self):
        return self.log.read_text().splitlines()

    @property
    def installs(self):
        return [line for line in self.asked if line.startswith("apt-get install ")]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_root_installs_what_is_missing_and_the_first_line_has_it_and_how_to_leave_it_out(machine):
    machine.program("dpkg-query", machine.dpkg_query(installed=["runc"]))
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "make test installs what the tests need (SETUP=0 leaves it out): prometheus containerd"
    ]
    assert [line.split()[-1] for line in machine.installs] == ["prometheus", "containerd"]
    for line in machine.installs:
        assert {"--no-remove", "--no-upgrade", "--no-install-recommends"} <= set(line.split())


def test_where_nothing_is_missing_or_setup_is_0_nothing_is_asked_of_apt(machine):
    left_out = machine.setup(SETUP="0")
    machine.program("dpkg-query", machine.dpkg_query(["prometheus", "containerd", "runc"]))
    complete = machine.setup()
    for done in (left_out, complete):
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not [line for line in machine.asked if line.startswith("apt-get")]


@pytest.mark.parametrize(
    ("line", "has_service", "reason"),
    [
        ("Remv containerd.io [1.7.0]", False, "containerd.io"),
        ("Inst runc [1.1.4] (1.1.5 Debian:12 [amd64])", False, "runc"),  # of the table
        ("Inst docker-ce [24.0] (25.0 Docker CE [amd64])", True, "docker-ce"),
    ],
)
def test_a_group_for_which_apt_would_remove_or_replace_something_is_not_installed(
    machine, line, has_service, reason
):
    files = ["/lib/systemd/system/docker.service"] if has_service else ["/usr/bin/x"]
    machine.program("dpkg-query", machine.dpkg_query(files=files))
    machine.plan(line, "Inst containerd (1.6 Debian:12 [amd64])")
    done = machine.setup()
    assert done.returncode == 0
    assert [line.split()[-1] for line in machine.installs] == ["prometheus"]
    assert done.stderr == (
        f"Not installed: containerd runc (apt would remove or replace {reason}). "
        "Without it these tests do not run: a real Kubernetes (tests/cluster)\n"
    )


def test_a_library_that_a_new_package_needs_newer_is_no_replacement(machine):
    machine.program("dpkg-query", machine.dpkg_query(files=["/lib/libc.so.6"]))
    machine.plan(
        "Inst libc6 [2.36-8] (2.36-9 Debian:12 [amd64])", "Inst containerd (1.6 D [amd64])"
    )
    assert machine.setup().stderr == ""
    assert [line.split()[-1] for line in machine.installs] == ["prometheus", "runc"]


@pytest.mark.parametrize(("purpose", "status"), [("test", 0), ("ci-setup", 1)])
def test_what_apt_cannot_install_is_reported_and_the_rest_is_installed(machine, purpose, status):
    unknown = "E: Unable to locate package prometheus"
    machine.program("apt-get", f"case \"$*\" in *' prometheus') echo '{unknown}'; exit 100 ;; esac")
    done = machine.setup(purpose)
    assert done.returncode == status
    assert f"Not installed: prometheus ({unknown}). " in done.stderr
    assert [line.split()[-1] for line in machine.installs] == ["runc"]


ASKS_POLICY = """case "$*" in
install*) "$DPKG_ROOT/usr/sbin/policy-rc.d" prometheus start; echo "policy: $?" >>{log} ;;
esac"""


@pytest.mark.parametrize("own", [None, "exit 0", "exit 101"], ids=["none", "allows", "denies"])
def test_no_service_is_started_and_the_machines_own_policy_is_kept(machine, own):
    if own:
        machine.policy.write_text(f"#!/bin/sh\n{own}\n")
        machine.policy.chmod(0o755)
    machine.program("apt-get", ASKS_POLICY.format(log=machine.log))
    assert machine.setup().returncode == 0
    assert [line for line in machine.asked if line.startswith("policy")] == ["policy: 101"] * 2
    left = {path.name: path.read_text() for path in machine.policy.parent.iterdir()}
    assert left == ({"policy-rc.d": f"#!/bin/sh\n{own}\n"} if own else {})


def test_a_policy_that_a_killed_setup_has_left_denies_nothing(machine):
    machine.program("apt-get", 'case "$*" in install*) kill -9 $PPID ;; esac')
    assert machine.setup().returncode == -9
    assert subprocess.run([machine.policy, "prometheus", "start"], check=False).returncode == 0


def test_no_service_of_a_new_package_is_enabled(machine):
    files = ["/lib/systemd/system/prometheus.service", "/etc/init.d/prometheus", "/usr/bin/x"]
    machine.program("dpkg-query", machine.dpkg_query(files=files))
    machine.plan("Inst prometheus (2.42 Debian:12 [amd64])", package="prometheus")
    assert machine.setup("ci-setup", table="prometheus: dashboards").returncode == 0
    root = f"--root={machine.folder}"
    changed = [line for line in machine.asked if line.startswith(("systemctl", "update-rc.d"))]
    assert changed == [
        f"systemctl {root} disable prometheus.service",
        "update-rc.d prometheus disable",
    ]


def test_anybody_else_sees_the_one_command_to_type_and_installs_nothing(machine):
    machine.program("id", "echo 1000")
    assert machine.setup().stdout == (
        "To run every test, type once: sudo make ci-setup"
        " (it installs prometheus containerd runc)\n"
    )
    machine.program("dpkg-query", machine.dpkg_query(["prometheus", "containerd", "runc"]))
    assert "sudo make test" in machine.setup().stdout
    assert machine.setup("ci-setup").returncode == 1
    assert not [line for line in machine.asked if line.startswith(("apt-get", "sudo"))]


def test_each_package_that_a_test_asks_for_is_in_the_table():
    asked = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if path != ROOT / "tests" / "test_setup.py":
            asked |= set(re.findall(r'required_tool\(\s*"[^"]+", "([^"]+)"\s*\)', path.read_text()))
    names = {name for text in asked for name in text.split()}
    essential = {"bash", "dpkg", "util-linux", "systemd"}
    assert names - essential - set(PACKAGES) == set()
    assert names & set(PACKAGES)


def test_no_other_file_has_a_second_list_of_packages():
    for name in (".ci/run", ".gitlab-ci.yml", "docs/testing.md", "CONTRIBUTING.md", "README.md"):
        words = set(re.findall(r"[\w-]+", (ROOT / name).read_text()))
        assert len(words & {"mmdebstrap", "conntrack", "socat", "busybox-static"}) <= 1, name


def run_of(tmp_path, body, *arguments):
    """A run of pytest on this text, with no plugin but those that are named."""
    test = tmp_path / "test_it.py"
    test.write_text(f"import pytest\n{body}\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.support.not_run",
    ]
    return subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", tmp_path, *arguments, test],
        env=without_pytest_options()
        | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


SKIPS = """
@pytest.mark.parametrize("number", range(3))
def test_a(number):
    pytest.skip("promtool is not installed: apt-get install prometheus")
def test_b():
    pytest.skip("only root can do this: sudo make test")
def test_c():
    pass
"""
LIST = """\
Not run: 4 tests, status 3 unless SKIP_MISSING=1
     3 promtool is not installed: apt-get install prometheus
     1 only root can do this: sudo make test
Only a GPU can run 8 more checks: make test-gpu
"""


@pytest.mark.parametrize(("status", "workers"), [(3, ["-p", "xdist", "-n2"]), (0, [])])
def test_what_did_not_run_and_why_stands_at_the_end_and_makes_the_status(tmp_path, status, workers):
    done = run_of(tmp_path, SKIPS, *workers, f"--not-run-status={status}")
    expected = LIST if status else LIST.replace("status 3 unless SKIP_MISSING=1", "status 0")
    assert done.stdout.endswith(f"=\n{expected}"), done.stdout
    assert done.returncode == status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (SKIPS + "def test_d():\n    assert False\n", 1),
        ("def test_c():\n    pass\n", 0),
        ("pytest.skip('a whole file', allow_module_level=True)", 5),
    ],
    ids=["one fails", "all run", "a file"],
)
def test_a_skip_hides_no_other_status(tmp_path, body, status):
    done = run_of(tmp_path, body, "--not-run-status=3")
    assert done.returncode == status, done.stdout
    assert done.stdout.splitlines()[-1] == "Only a GPU can run 8 more checks: make test-gpu"
    assert ("Not run: " in done.stdout) == ("skip" in body)


def test_without_the_option_pytest_is_as_it_was(tmp_path):
    done = run_of(tmp_path, SKIPS)
    assert done.returncode == 0
    assert "Not run" not in done.stdout


def locked(name):
    """Package -> version."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE | re.IGNORECASE))


def test_make_check_installs_a_part_of_what_the_tests_need_in_the_same_versions():
    part, whole = locked("check"), locked("dev")
    assert part.items() < whole.items()
    assert not part.keys() & {"atheris", "matplotlib", "mkdocs", "nvitop-exporter", "uv"}
