"""The driver's mirror: found on the host, laid out, switched whole, kept for who has it."""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.gaia import driver_mirror, ldcache
from deviceplugin.gaia.driver_files import (
    HostDriver,
    HostFile,
    Library,
    read_library,
    resolved,
    survey,
)
from deviceplugin.gaia.driver_layout import Flavour, origin
from deviceplugin.gaia.driver_mirror import DriverMirror, DriverSource
from deviceplugin.gaia.services import GaiaServices, GaiaSettings
from tests.deviceplugin.driver_host import FOLDERS, VERSION, DriverHost, cache, elf, tree
from tests.deviceplugin.gaia_pods import DEVICES, ROLE, asking
from tests.support.environment import missing
from tests.support.plugin_pods import NODE, admitted_pod_of, no_capacity
from vgpu.model.reasons import Reason, SourceError

SHARED, ORIGIN = Flavour.SHARED, Flavour.ORIGIN


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """No test can see what has reached the disk, and waiting for it takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def host(tmp_path):
    one = DriverHost(tmp_path / "host")
    one.driver()
    return one


@pytest.fixture
def plugin(tmp_path):
    """What our image brings."""
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "libcuda-control.so").write_bytes(elf(64, "libcuda-control.so"))
    (folder / "gpu-client").write_bytes(b"client")
    return folder


@pytest.fixture
def informer(tmp_path, host, plugin):
    """A maker of mirrors; ``control`` and others as in Source."""

    def make(boot="boot-1", **source):
        source = {"control": str(plugin / "libcuda-control.so"), **source}
        return DriverMirror(str(tmp_path / "vdriver"), DriverSource(str(host.root), **source), boot)

    return make


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "vdriver"


def reason(act, *args):
    with pytest.raises(SourceError) as caught:
        act(*args)
    return caught.value.reason


# ---------------------------------------------------------------- what is laid out


def test_whole_gpus_have_the_drivers_own_libraries(informer, folder):
    informer().refresh()
    lib64 = {
        "libcuda.so": f"-> libcuda.so.{VERSION}",
        "libcuda.so.1": f"-> libcuda.so.{VERSION}",
        f"libcuda.so.{VERSION}": elf(64, "libcuda.so.1"),
        "libnvidia-ml.so": f"-> libnvidia-ml.so.{VERSION}",
        "libnvidia-ml.so.1": f"-> libnvidia-ml.so.{VERSION}",
        f"libnvidia-ml.so.{VERSION}": elf(64, "libnvidia-ml.so.1"),
        "libnvidia-ptxjitcompiler.so": f"-> libnvidia-ptxjitcompiler.so.{VERSION}",
        "libnvidia-ptxjitcompiler.so.1": f"-> libnvidia-ptxjitcompiler.so.{VERSION}",
        f"libnvidia-ptxjitcompiler.so.{VERSION}": elf(64, "libnvidia-ptxjitcompiler.so.1"),
        f"libnvidia-glcore.so.{VERSION}": elf(64, f"libnvidia-glcore.so.{VERSION}"),
    }
    wanted = {f"lib64/{name}": content for name, content in lib64.items()}
    assert tree(folder / "origin") == wanted | {"bin/nvidia-smi": b"#!/bin/sh\n"}


def test_parts_of_gpus_find_the_control_library_in_place_of_the_drivers(informer, folder, plugin):
    """It loads the driver's own by their versions, so these stay."""
    informer().refresh()
    whole, part = tree(folder / "origin"), tree(folder / "nvidia")
    control = "-> libcuda-control.so"
    assert part == whole | {
        "lib64/libcuda.so": control,
        "lib64/libcuda.so.1": control,
        "lib64/libnvidia-ml.so": control,
        "lib64/libnvidia-ml.so.1": control,
        "lib64/libcuda-control.so": (plugin / "libcuda-control.so").read_bytes(),
        "bin/gpu-client": b"client",
    }


def test_libraries_of_32_bits_have_a_folder_of_their_own(informer, folder, host):
    host.library("libcuda.so", bits=32)
    host.library("libnvidia-ptxjitcompiler.so", bits=32)
    host.ldconfig()
    informer().refresh()
    assert (folder / "origin/lib/libcuda.so.1").exists()
    assert (folder / "nvidia/lib/libnvidia-ptxjitcompiler.so.1").exists()


def test_no_cuda_is_left_that_the_control_library_does_not_limit(informer, folder, host):
    """There is one of 64 bits only."""
    host.library("libcuda.so", bits=32)
    host.ldconfig()
    informer().refresh()
    left = {name for name in tree(folder / "nvidia") if name.startswith("lib/")}
    assert left == set()


def test_graphics_libraries_are_taken_if_they_are_nvidias(informer, folder, host):
    host.library("libEGL.so", version="1.1.0", needed=["libGLdispatch.so.0"])
    host.library("libGL.so", version="1.2.0", needed=["libX11.so.6"])
    host.library("libGLX_nvidia.so", soname="libGLX_nvidia.so.0")
    host.ldconfig()
    informer().refresh()
    names = {path.name for path in (folder / "origin/lib64").iterdir()}
    assert {"libEGL.so.1", "libEGL.so.1.1.0", "libGLX_indirect.so.0"} <= names
    assert not any(name.startswith("libGL.so") for name in names)


def test_what_an_older_driver_left_behind_is_not_taken(informer, folder, host):
    host.library("libnvidia-glcore.so", version="535.54.03")
    host.library("libcuda.so", version="535.54.03", bits=32)
    host.ldconfig()
    informer().refresh()
    assert not [name for name in tree(folder / "origin") if "535" in name]


def test_programs_keep_their_mode_and_copies_are_not_links(informer, folder):
    informer().refresh()
    smi = folder / "origin/bin/nvidia-smi"
    assert os.access(smi, os.X_OK)
    assert not smi.is_symlink()


def test_a_host_that_is_another_file_system_is_copied(informer, folder, host, monkeypatch):
    link = os.link

    def refuse(source, target):
        if str(source).startswith(str(host.root)):
            raise OSError(18, "Invalid cross-device link")
        link(source, target)

    monkeypatch.setattr(driver_mirror.os, "link", refuse)
    informer().refresh()
    one, two = (folder / name / f"lib64/libcuda.so.{VERSION}" for name in ("origin", "nvidia"))
    assert one.read_bytes() == elf(64, "libcuda.so.1")
    assert one.stat().st_ino == two.stat().st_ino  # once for both


def test_a_library_that_calls_itself_a_path_is_refused():
    file = HostFile("/usr/lib/libcuda.so.1.2", 1, 1)
    driver = HostDriver("1.2", (file,), {})
    assert reason(origin, driver, {file.path: Library(64, "../../x")}) is Reason.MALFORMED


def test_a_driver_that_cannot_be_limited_is_refused(informer, host):
    """Its soname is its whole name: programs would get past the control library."""
    host.library("libcuda.so", soname=f"libcuda.so.{VERSION}")
    host.known.append(("libcuda.so.1", f"{host.shown(64)}/libcuda.so.1"))
    host.ldconfig()
    assert reason(informer().refresh) is Reason.MALFORMED


# ---------------------------------------------------------------- what is found


def test_links_lead_as_they_do_on_the_host(host):
    """Debian's alternatives are absolute links; none leads above the host's root."""
    host.path("/etc/alternatives").mkdir()
    target = f"{FOLDERS[64]}/libcuda.so.{VERSION}"
    host.path("/etc/alternatives/libcuda.so.1").symlink_to(target)
    link = host.path(f"{FOLDERS[64]}/libcuda.so.1")
    link.unlink()
    link.symlink_to("/../../etc/./alternatives/libcuda.so.1")
    assert resolved(str(host.root), "/lib/x86_64-linux-gnu/libcuda.so.1") == str(host.path(target))
    assert survey(str(host.root)).version == VERSION


def test_a_ring_of_links_ends(host):
    host.path("/a").symlink_to("b")
    host.path("/b").symlink_to("a")
    with pytest.raises(OSError, match="many levels"):
        resolved(str(host.root), "/a")


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 9, b"glibc-ld.so.cache1.1"])
def test_without_a_good_cache_the_usual_folders_are_searched(host, content):
    by_cache = survey(str(host.root))
    host.path("/etc/ld.so.cache").unlink()
    if content is not None:
        host.put("/etc/ld.so.cache", content)
    assert set(survey(str(host.root)).libraries) == set(by_cache.libraries)


def test_a_cache_from_before_the_driver_is_helped_out(host):
    host.known = [("libc.so.6", "/lib/libc.so.6")]
    host.ldconfig()
    assert survey(str(host.root)).version == VERSION


def test_a_host_without_a_driver_reports_where_it_was_sought(tmp_path):
    with pytest.raises(SourceError, match=r"libcuda\.so\.1 .*ld\.so\.cache.*/usr/lib64") as caught:
        survey(str(tmp_path))
    assert caught.value.reason is Reason.LIBRARY_NOT_FOUND


def test_a_driver_that_is_half_installed_waits(host):
    host.library("libnvidia-ml.so", version="590.1")
    host.ldconfig()
    with pytest.raises(SourceError, match="being installed"):
        survey(str(host.root))


def test_this_machines_own_cache_is_read():
    path = Path("/etc/ld.so.cache")
    if not path.exists():
        missing("no glibc here")
    found = dict(ldcache.parse(path.read_bytes()))
    assert Path(found["libc.so.6"]).exists()


@pytest.mark.parametrize("old", [False, True])
def test_both_forms_of_the_cache_are_read(old):
    pairs = (("libcuda.so.1", "/lib/libcuda.so.1"), ("libz.so", "/lib/libz.so"))
    assert ldcache.parse(cache(pairs, old=old)) == pairs


@given(st.binary(), st.integers(0, 400), st.binary(max_size=8), st.booleans())
def test_a_cache_of_any_bytes_is_read_or_refused(tail, at, damage, old):
    good = cache([("libcuda.so.1", "/lib/libcuda.so.1")], old=old)
    for content in (
        tail,
        good[:at],
        good[:at] + damage + good[at + len(damage) :],
        good[:48] + tail,
    ):
        with suppress(SourceError):
            found = ldcache.parse(content)
            assert all("\0" not in text for pair in found for text in pair)


@given(st.integers(0, 400), st.binary(max_size=16))
def test_an_elf_file_of_any_bytes_is_read_or_refused(tmp_path_factory, at, damage):
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    for good in (elf(64, "liba.so.1", ["libb.so"]), elf(32, "liba.so.1")):
        path.write_bytes(good[:at] + damage + good[at + len(damage) :])
        with suppress(SourceError):
            read_library(str(path))


@pytest.mark.parametrize("bits", [32, 64])
def test_an_elf_file_has_its_class_and_its_names(tmp_path, bits):
    (tmp_path / "a.so").write_bytes(elf(bits, "liba.so.1", ["libb.so.2", "libc.so.6"]))
    library = read_library(str(tmp_path / "a.so"))
    assert library == Library(bits, "liba.so.1", ("libb.so.2", "libc.so.6"))


def test_a_real_librarys_soname_is_read(tmp_path):
    if not shutil.which("gcc"):
        missing("no compiler here")
    compiled(tmp_path / "libx.so.1.2", "int x(void){return 1;}", "libx.so.1")
    assert read_library(str(tmp_path / "libx.so.1.2")).soname == "libx.so.1"


def compiled(path, source, soname):
    path.with_suffix(".c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", path]
    subprocess.run([*command, path.with_suffix(".c")], check=True)


def test_the_loader_finds_the_control_library_and_that_one_the_driver(
    informer, folder, host, plugin
):
    """As in a container: by LD_LIBRARY_PATH alone, with libraries that a compiler made."""
    if not shutil.which("gcc"):
        missing("no compiler here")
    for stem in ("libcuda.so", "libnvidia-ml.so"):
        path = host.path(f"{FOLDERS[64]}/{stem}.{VERSION}")
        path.unlink()
        compiled(path, "int answer(void){return 1;}", f"{stem}.1")
    control = f"""
    #include <dlfcn.h>
    int answer(void) {{
        int (*its)(void) = (int (*)(void)) dlsym(dlopen("libcuda.so.{VERSION}", 2), "answer");
        return 10 * its();
    }}"""
    compiled(plugin / "libcuda-control.so", control, "libcuda-control.so")
    informer().refresh()
    program = """
    #include <dlfcn.h>
    int main(int n, char **names) {
        return ((int (*)(void)) dlsym(dlopen(names[1], 2), "answer"))();
    }"""
    source = folder.parent / "main.c"
    source.write_text(program)
    subprocess.run(["gcc", "-o", folder.parent / "main", source], check=True)

    def answer(flavour, library):
        env = {"LD_LIBRARY_PATH": str(folder / flavour / "lib64")}
        return subprocess.run([folder.parent / "main", library], env=env, check=False).returncode

    for library in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"):
        assert answer("origin", library) == 1
        assert answer("nvidia", library) == 10


# ---------------------------------------------------------------- how it is switched


def test_a_mirror_that_is_complete_is_kept(informer, folder):
    first = informer().refresh()
    inodes = {path: path.lstat().st_ino for path in folder.rglob("*")}
    again = informer().refresh()
    assert again == first
    assert {path: path.lstat().st_ino for path in folder.rglob("*")} == inodes


def test_another_driver_makes_another_folder_and_the_old_one_stays(informer, folder, host):
    """Containers of this boot may have it."""
    before = informer().refresh()
    old = {flavour: folder / name for flavour, name in before.folders.items()}
    kept = {flavour: tree(path) for flavour, path in old.items()}
    host.driver("590.10.01")
    after = informer().refresh()
    assert after.version == "590.10.01"
    assert not set(after.folders.values()) & set(before.folders.values())
    for flavour in (SHARED, ORIGIN):
        assert str((folder / flavour).readlink()) == after.folders[flavour]
        assert tree(old[flavour]) == kept[flavour]


def test_after_the_next_boot_the_old_one_goes(informer, folder, host):
    before = informer().refresh()
    host.driver("590.10.01")
    after = informer().refresh()
    informer(boot="boot-2").refresh()
    there = {path.name for path in folder.iterdir()}
    assert not there & set(before.folders.values())
    assert set(after.folders.values()) <= there
    assert not [name for name in there if name.removesuffix(".boot") in before.folders.values()]


def test_a_folder_that_is_used_again_in_this_boot_stays(informer, folder, host):
    """Back to the first driver in the second boot, then forth: both may be had by containers."""
    first = informer().refresh()
    informer(boot="boot-2").refresh()
    host.driver("590.10.01")
    informer(boot="boot-2").refresh()
    assert set(first.folders.values()) <= {path.name for path in folder.iterdir()}


def test_another_control_library_makes_another_folder_for_parts_only(informer, plugin):
    before = informer().refresh()
    (plugin / "libcuda-control.so").write_bytes(elf(64, "libcuda-control.so", ["libm.so.6"]))
    after = informer().refresh()
    assert before.folders[ORIGIN] == after.folders[ORIGIN]
    assert before.folders[SHARED] != after.folders[SHARED]


def test_gpu_managers_own_folder_is_put_aside_for_its_containers(informer, folder):
    (folder / "nvidia/lib64").mkdir(parents=True)
    (folder / "nvidia/lib64/libcuda.so").write_text("its")
    informer().refresh()
    assert (folder / "nvidia").is_symlink()
    (aside,) = folder.glob("nvidia.gpu-manager-????????????")
    assert tree(aside) == {"lib64/libcuda.so": b"its"}
    informer(boot="boot-2").refresh()
    assert not aside.exists()


def test_a_container_keeps_the_folder_that_it_was_made_with(informer, folder, host, tmp_path):
    """The source of its mount is a link, and the kernel follows it once."""
    inside = tmp_path / "inside"
    inside.mkdir()
    informer().refresh()
    mounted = f'mount --bind "{folder}/nvidia" "{inside}"'
    script = f'{mounted} && echo ready && read line && ls "{inside}/lib64"'
    command = ["unshare", "-m", "sh", "-c", script]
    try:
        container = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except FileNotFoundError:
        missing("no unshare here")
    with container:
        if container.stdout.readline() != "ready\n":
            missing("nothing may be mounted here")
        host.driver("590.10.01")
        informer().refresh()
        listed, _ = container.communicate("\n")
    assert f"libcuda.so.{VERSION}" in listed
    assert "590" not in listed


def test_an_interrupted_mirror_is_begun_again(informer, folder, monkeypatch):
    """Killed in the middle, or the disk is full."""
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refusing)
        with pytest.raises(OSError, match="No space"):
            informer().refresh()
    assert not (folder / "origin").exists()
    (folder / ".nvidia.1-0.new/lib64").mkdir(parents=True)
    informer().refresh()
    assert not list(folder.glob(".*.new"))
    assert (folder / "origin/lib64/libcuda.so.1").exists()


def refusing(fd):
    raise OSError(28, "No space left on device")


def test_a_driver_that_is_replaced_while_it_is_copied_is_not_used(
    informer, folder, host, monkeypatch
):
    def meanwhile(fd):
        host.library("libnvidia-ptxjitcompiler.so")

    monkeypatch.setattr(os, "fsync", meanwhile)
    assert reason(informer().refresh) is Reason.CHANGED_WHILE_READ
    assert not (folder / "origin").exists()


def test_a_library_that_is_cut_short_leaves_the_mirror_before(informer, folder, host):
    before = informer().refresh()
    host.put(f"{FOLDERS[64]}/libnvidia-ptxjitcompiler.so.{VERSION}", elf()[:40])
    with pytest.raises(SourceError, match="ptxjitcompiler"):
        informer().refresh()
    assert str((folder / "nvidia").readlink()) == before.folders[SHARED]


# ---------------------------------------------------------------- what limits it


def test_without_a_control_library_whole_gpus_are_served_all_the_same(informer, folder):
    found = informer(control="/nowhere/libcuda-control.so").refresh()
    assert set(found.folders) == {ORIGIN}
    assert "/nowhere/libcuda-control.so is not there" in found.problem


def test_without_parts_of_gpus_no_control_library_is_missed(informer):
    found = informer(control=None, shares=False).refresh()
    assert (set(found.folders), found.problem) == ({ORIGIN}, "")


def test_the_control_library_may_be_the_hosts(informer, host):
    host.put("/usr/bin/gpu-client", b"client")
    host.put(f"{FOLDERS[64]}/libcuda-control.so", elf(64, ""))
    host.known.append(("libcuda-control.so", f"{FOLDERS[64]}/libcuda-control.so"))
    host.ldconfig()
    assert set(informer(control=None).refresh().folders) == {SHARED, ORIGIN}


def test_without_its_client_the_control_library_is_of_no_use(informer, plugin):
    (plugin / "gpu-client").unlink()
    found = informer().refresh()
    assert set(found.folders) == {ORIGIN}
    assert "gpu-client" in found.problem


# ---------------------------------------------------------------- who waits for it


def test_pods_wait_for_the_driver_and_continue_when_it_has_come(tmp_path, host, plugin):
    events = []
    host.path("/etc/ld.so.cache").unlink()
    aside = host.path(FOLDERS[64]).rename(tmp_path / "aside")
    keeper = GaiaServices(
        GaiaSettings(
            limits_dir="/proc/self/fd/none",  # no socket is opened here
            driver_dir=str(tmp_path / "vdriver"),
            driver=DriverSource(str(host.root), control=str(plugin / "libcuda-control.so")),
        ),
        pod={}.get,
        driver=lambda: (580, 95),
        mirrored=lambda: events.append("mirrored"),
    )
    one = asking((50, 30))
    admitted_pod = admitted_pod_of(one, ROLE.claim(one, NODE, DEVICES, no_capacity(DEVICES)))
    keeper.refresh()
    assert "libcuda.so.1" in keeper.problem
    with pytest.raises(OSError, match=r"libcuda\.so\.1"):
        keeper.require_driver(admitted_pod)
    assert events == []
    aside.rename(host.path(FOLDERS[64]))
    keeper.refresh()
    assert keeper.problem == ""
    keeper.require_driver(admitted_pod)
    keeper.refresh()
    assert events == ["mirrored"]
    (plugin / "gpu-client").unlink()
    keeper.refresh()
    with pytest.raises(OSError, match="gpu-client"):
        keeper.require_driver(admitted_pod)
