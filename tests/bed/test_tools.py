"""The tools of the bed: taken from a cache, built once and whole, or a clear word why not."""

import io
import os
import re
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bed.gomodules import GO_ENVIRONMENT, Recipe, find_go, pinned_version
from tests.support.bed.toolcache import Progress
from tests.support.bed.tools import (
    MODULES,
    RECIPES,
    Tool,
    ToolsMissing,
    ensure,
    module_folder,
    user_cache,
)
from tests.support.environment import ROOT, missing
from tests.support.waiting import wait_until

LIBRARY = "example.test/library"
"""A made-up Go module served from a folder."""
FILES = {
    "go.mod": f"module {LIBRARY}\n\ngo 1.24\n",
    "cmd/greet/main.go": """package main

import (
	"os"
	"path/filepath"
)

var version = "unknown"

func main() { os.Stdout.WriteString(filepath.Base(os.Args[0]) + " " + version + "\\n") }
""",
    "kinds/one.yaml": "kind: One\n",
    "other/two.yaml": "kind: Two\n",
}
GO_MOD = f"""module vgpu.dev/testbed/made-up

go 1.24

tool {LIBRARY}/cmd/greet

require {LIBRARY} v1.2.3
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of this test's own, and none of what a developer or CI may have set."""
    if go := find_go():  # keeps its cache where it is
        monkeypatch.setenv("GOCACHE", output_of(go.program, "env", "GOCACHE").strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("CI", "VGPU_TESTBED_BIN", "KUBEBUILDER_ASSETS"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def made_up(own_cache, tmp_path, monkeypatch):
    """A module whose program prints its version, and how it was called."""
    if find_go() is None:
        missing("Go is not installed: https://go.dev/dl")
    served = tmp_path / "proxy" / LIBRARY / "@v"
    served.mkdir(parents=True)
    (served / "v1.2.3.info").write_text('{"Version": "v1.2.3"}')
    (served / "v1.2.3.mod").write_text(FILES["go.mod"])
    with zipfile.ZipFile(served / "v1.2.3.zip", "w") as archive:
        for name, content in FILES.items():
            archive.writestr(f"{LIBRARY}@v1.2.3/{name}", content)
    folder = tmp_path / "go" / "made-up"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text(GO_MOD)
    monkeypatch.setenv("GOPROXY", f"file://{tmp_path / 'proxy'}")
    monkeypatch.setenv("GOSUMDB", "off")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    run_go(folder, "mod", "tidy")
    yield Recipe(
        folder,
        LIBRARY,
        programs=("hello", "goodbye"),
        multicall="greet",
        stamps=("main.version={version}",),
    )
    run_go(folder, "clean", "-modcache")  # it is read-only: nothing else could delete it


def run_go(folder, *arguments):
    environment = {**os.environ, **GO_ENVIRONMENT}
    subprocess.run(["go", *arguments], cwd=folder, env=environment, check=True, capture_output=True)


def output_of(program, *arguments):
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
    return result.stdout + result.stderr


def start_ensure(recipe, log, path=os.environ["PATH"]):
    """Another process that wants what the recipe makes."""
    script = f"from tests.support.bed.tools import ensure; ensure(build=True, recipes=[{recipe!r}])"
    script = (
        f"from tests.support.bed.gomodules import Recipe; from pathlib import PosixPath; {script}"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    with log.open("w") as stderr:
        return subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=stderr)


def ended(process, log):
    """Its exit status; go may have to compile a standard library first."""
    wait_until(lambda: process.poll() is not None, "it ends", seconds=600, context=log.read_text)
    return process.returncode


def executable(path, content="#!/bin/sh\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


def test_what_is_not_built_is_one_clear_line(made_up):
    with pytest.raises(
        ToolsMissing, match=r"^the cluster tools are not built: make cluster-tools$"
    ):
        ensure(recipes=[made_up])


def test_a_build_stamps_the_pinned_version_and_answers_to_each_name(made_up):
    tools = ensure(build=True, recipes=[made_up])

    assert output_of(tools.path("hello")) == "hello v1.2.3\n"
    assert output_of(tools.path("goodbye")) == "goodbye v1.2.3\n"


def test_ci_builds_what_is_missing(made_up, monkeypatch):
    monkeypatch.setenv("CI", "true")

    tools = ensure(recipes=[made_up])

    monkeypatch.delenv("CI")
    assert ensure(recipes=[made_up]) == tools


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_a_change_of_what_goes_in_is_another_build(made_up, name):
    before = made_up.digest()

    with (made_up.folder / name).open("a") as file:
        file.write("// changed\n")

    assert made_up.digest() != before


@pytest.mark.parametrize("change", [{"tags": ("other",)}, {"stamps": ()}, {"kept": ("kinds",)}])
def test_a_change_of_how_it_is_built_is_another_build(made_up, change):
    assert replace(made_up, **change).digest() != made_up.digest()


def test_where_the_checkout_lies_and_what_else_is_in_it_change_nothing(made_up, tmp_path):
    before = made_up.digest()

    (made_up.folder / "go.mod~").write_text("an editor's")
    moved = made_up.folder.rename(tmp_path / "made-up")

    assert replace(made_up, folder=moved).digest() == before
    moved.rename(made_up.folder)


def test_two_callers_at_once_build_once(made_up, tmp_path):
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    with user_cache()._lock(Progress("the test", io.StringIO())):
        callers = [start_ensure(made_up, log) for log in logs]
        wait_until(lambda: all("waiting" in log.read_text() for log in logs), "both waiting")
    assert [ended(caller, log) for caller, log in zip(callers, logs, strict=True)] == [0, 0]

    texts = [log.read_text() for log in logs]
    assert sorted("made by another" in text for text in texts) == [False, True]
    assert sorted(": making " in text for text in texts) == [False, True]


def test_a_killed_build_leaves_no_half_program_and_no_second_build_beside_it(made_up, tmp_path):
    half_made, pid = tmp_path / "half-made", tmp_path / "pid"
    slow = f"""#!/bin/sh
[ "$1" = version ] && exec {find_go().program} version
while [ "$1" != -o ]; do shift; done
echo $$ >{pid}; echo half >"$2/greet"; echo "$2" >{half_made}
exec sleep 1000
"""
    slow_path = f"{executable(tmp_path / 'bin' / 'go', slow).parent}:{os.environ['PATH']}"
    killed = start_ensure(made_up, tmp_path / "killed.log", slow_path)
    wait_until(lambda: half_made.exists() and half_made.read_text().strip(), "half made")
    killed.kill()
    killed.wait()
    next_log = tmp_path / "next.log"
    try:
        with pytest.raises(ToolsMissing, match="not built"):
            ensure(recipes=[made_up])
        following = start_ensure(made_up, next_log)
        wait_until(lambda: "waiting" in next_log.read_text(), "waits for the go that is left")
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)

    assert ended(following, next_log) == 0, next_log.read_text()
    assert output_of(ensure(recipes=[made_up]).path("hello")) == "hello v1.2.3\n"
    assert not Path(half_made.read_text().strip()).exists()


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_nothing(made_up):
    broken = made_up.folder / "broken"
    broken.mkdir()
    (broken / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    run_go(made_up.folder, "mod", "edit", "-tool", "vgpu.dev/testbed/made-up/broken")

    with pytest.raises(ToolsMissing, match=r"made-up(?s:.*)main\.go:3:15: undefined: undefined"):
        ensure(build=True, recipes=[made_up])

    assert [path for path in user_cache().folder.iterdir() if path.is_dir()] == []


def test_a_module_that_differs_from_go_sum_is_refused(made_up):
    sums = made_up.folder / "go.sum"
    changed = re.sub(r" h1:\S+", f" h1:{'A' * 43}=", sums.read_text())
    sums.write_text(changed)

    with pytest.raises(ToolsMissing, match="checksum mismatch"):
        ensure(build=True, recipes=[made_up])


def test_a_too_old_go_is_named_with_what_is_needed(made_up):
    go_mod = made_up.folder / "go.mod"
    original = go_mod.read_text()
    go_mod.write_text(original.replace("go 1.24", "go 9.9.1"))

    with pytest.raises(ToolsMissing, match=r"need Go 9\.9\.1 or newer and \S*/go is go1\."):
        ensure(build=True, recipes=[made_up])

    go_mod.write_text(original)


def test_without_go_what_any_go_has_built_is_good_and_the_rest_is_one_clear_line(
    made_up, monkeypatch
):
    built = ensure(build=True, recipes=[made_up])
    with monkeypatch.context() as without_go:
        without_go.setenv("PATH", "/nonexistent")

        assert ensure(recipes=[made_up]) == built
        with pytest.raises(ToolsMissing, match=r"needs Go .* none in PATH$"):
            ensure(build=True, recipes=[replace(made_up, tags=("other",))])


def test_another_go_version_builds_again(made_up):
    ensure(build=True, recipes=[made_up])
    cache = user_cache()

    assert cache.find(made_up)
    assert not replace(cache, go=replace(cache.go, version="go1.0-linux-amd64")).find(made_up)


def test_pruning_deletes_what_is_not_current_and_nothing_else(made_up):
    ensure(build=True, recipes=[replace(made_up, stamps=())])
    current = ensure(build=True, recipes=[made_up])
    cache = user_cache()
    neighbour = cache.folder.parent / "images"
    neighbour.mkdir()

    deleted = cache.prune([made_up], Progress("prune", io.StringIO()))

    assert [path.name.startswith("made-up-") for path in deleted] == [True]
    assert ensure(recipes=[made_up]) == current
    assert neighbour.exists()


def test_only_the_kept_files_of_a_module_are_copied(made_up):
    files = replace(made_up, programs=(), multicall="", kept=("kinds",))

    folder = module_folder("made-up", build=True, recipes=[made_up, files])

    assert [str(path.relative_to(folder)) for path in folder.rglob("*.*")] == ["kinds/one.yaml"]
    assert (folder / "kinds/one.yaml").read_text() == "kind: One\n"


def test_files_of_a_module_that_go_sum_does_not_pin_are_refused(made_up):
    files = replace(made_up, programs=(), multicall="", kept=("kinds",))
    sums = made_up.folder / "go.sum"
    sums.write_text("")

    with pytest.raises(ToolsMissing, match=r"does not pin example\.test/library"):
        module_folder("made-up", build=True, recipes=[files])

    assert not sums.read_text()


def test_a_folder_brought_along_needs_no_build(own_cache, tmp_path, monkeypatch):
    for name in Tool:
        executable(tmp_path / ("containerd17" if name == Tool.CTR else "") / name)
    monkeypatch.setenv("VGPU_TESTBED_BIN", str(tmp_path))

    tools = ensure()

    assert tools.path(Tool.ETCD) == tmp_path / "etcd"
    assert tools.path(Tool.CTR) == tmp_path / "containerd17/ctr"


def test_a_folder_brought_along_without_a_program_is_named(own_cache, tmp_path, monkeypatch):
    for name in set(Tool) - {Tool.KUBELET}:
        executable(tmp_path / name)
    (tmp_path / "kubelet").write_text("not executable")
    monkeypatch.setenv("VGPU_TESTBED_BIN", str(tmp_path))

    with pytest.raises(ToolsMissing) as refusal:
        ensure()

    assert str(refusal.value) == (
        f"VGPU_TESTBED_BIN is {tmp_path}, where there is no program kubelet"
    )


def test_the_programs_of_envtest_do_for_an_api_server_and_nothing_more(
    own_cache, tmp_path, monkeypatch
):
    programs = (Tool.ETCD, Tool.APISERVER, Tool.KUBECTL)
    for name in programs:
        executable(tmp_path / name)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))

    tools = ensure(*programs)

    assert tools.programs == {name: tmp_path / name for name in programs}
    with pytest.raises(ToolsMissing, match="not built"):
        ensure(*programs, Tool.KUBELET)


def test_progress_is_renewed_on_a_terminal_and_rare_elsewhere():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        progress = Progress("[1/2] kube", stream)
        progress(312)
        progress(313)
        progress.say("made")

    assert "[1/2] kube: 313 packages compiled, 0m00s" in terminal.getvalue()
    assert terminal.getvalue().count("\n") == 1
    assert log.getvalue() == "[1/2] kube: made\n"


def test_each_program_has_one_recipe():
    assert sorted(name for recipe in RECIPES for name in recipe.programs) == sorted(Tool)


KUBERNETES = ("kube", "k8s.io/kubernetes")
CONTAINERD = ("containerd", "github.com/containerd/containerd")


@pytest.mark.parametrize(
    ("tool", "arguments", "pin"),
    [
        (Tool.ETCD, "--version", ("kube", "go.etcd.io/etcd/server/v3")),
        (Tool.APISERVER, "--version", KUBERNETES),
        (Tool.CONTROLLER_MANAGER, "--version", KUBERNETES),
        (Tool.SCHEDULER, "--version", KUBERNETES),
        (Tool.KUBELET, "--version", KUBERNETES),
        (Tool.KUBECTL, "version --client", KUBERNETES),
        (Tool.CONTAINERD, "--version", CONTAINERD),
        (Tool.CONTAINERD_SHIM, "-v", CONTAINERD),
        (Tool.CTR, "--version", CONTAINERD),
        (Tool.KWOK, "--version", ("kwok", "sigs.k8s.io/kwok")),
        (Tool.HELM, "version --short", ("helm", "helm.sh/helm/v3")),
    ],
)
def test_each_program_reports_its_pinned_version(tools, tool, arguments, pin):
    if user_cache().folder not in tools.path(tool).parents:
        missing(f"{tool} is not built but brought along")
    version = pinned_version(MODULES / pin[0], pin[1]).removeprefix("v")

    output = output_of(tools.path(tool), *arguments.split())

    assert re.search(rf"\bv?{re.escape(version)}(?![\w.+-])", output), output
