"""From the kubelet's checkpoint to a container that can be made, over real files."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from msgspec.structs import replace

from deviceplugin.allocate import binder as binder_module
from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder import MAKING_ROOM_SECONDS
from deviceplugin.allocate.binder_state import Recovered
from deviceplugin.failpoints import Step
from deviceplugin.injection.cdi import CdiInjector
from deviceplugin.injection.files import FileInjector
from deviceplugin.model import AllocationConflict
from deviceplugin.reasons import BindRefusal, BindRefused
from tests.deviceplugin.allocation_values import A, B, claimed, made, running, share
from tests.deviceplugin.plugin_parts import HASTY, PATIENT, Parts
from tests.support.broken_disk import Killed
from tests.support.waiting import result_of, wait_until
from vgpu.model.names import ContainerKind
from vgpu.model.objects import ContainerState, Status
from vgpu.schemes.codec import ContainerEdits

BOTH = pytest.mark.parametrize("injector", [CdiInjector, FileInjector], ids=["cdi", "files"])


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Parts(...) in this test's folder; they end with it."""
    monkeypatch.setattr("deviceplugin.adapters.volcano.LOCK_FOLDER", str(tmp_path / "lock"))
    monkeypatch.setattr("deviceplugin.allocate.allocator.SETTLING_SECONDS", PATIENT)
    running_now = []

    def make(injector=CdiInjector, **options):
        bench = Parts(tmp_path, injector, **options)
        running_now.append(bench)
        return bench

    yield make
    for each in running_now:
        each.stop()


def refused(call, *arguments):
    with pytest.raises(BindRefused) as caught:
        call(*arguments)
    return caught.value


def refused_for(why, call, *arguments):
    """The refusal for this reason, which may take a busy machine longer than HASTY to find."""
    return wait_until(
        lambda: (error := refused(call, *arguments)).why is why and error, f"refused for {why}"
    )


def wait_unhealthy(bench, gpu):
    wait_until(
        lambda: not bench.binder.state().allocation_state.named[gpu].healthy,
        f"{gpu} is known to be unhealthy",
    )


def spec(bench, name):
    """What a container is made with by CDI."""
    (device,) = json.loads((bench.folder / "handout" / f"vgpu-{name}.json").read_text())["devices"]
    return dict(line.split("=", 1) for line in device["containerEdits"]["env"])


# ---------------------------------------------------------------- bound


@BOTH
def test_a_container_is_bound_to_its_own_pods_claim(parts, injector):
    bench = parts(injector)
    bench.start()
    pod = bench.create("a", share(B, 3, 20))
    name = bench.admit(pod, ["id-0"])
    bench.start_container(pod)
    (binding,) = bench.saved()["a"].bindings
    assert (binding.name, binding.shares) == (name, (share(B, 3, 20),))
    assert bench.injector.written() == {name}
    admitted_pod, bound_binding, seconds = bench.watcher.wait("bound")
    assert (admitted_pod.pod.uid, bound_binding) == ("a", binding)
    assert seconds >= 0
    assert bench.binder.expecting() == 0


def test_answers_may_find_their_owners_in_another_order_than_that_of_the_scheduler(parts):
    bench = parts()
    bench.start()
    pods = [bench.create(f"p{n}", share(A, 1 + n)) for n in range(3)]
    names = {pod.ref.uid: bench.admit(pod, [f"id-{pod.ref.uid}"]) for pod in reversed(pods)}
    for gib, pod in enumerate(pods, 1):
        bench.start_container(pod)
        assert spec(bench, names[pod.ref.uid])["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{gib << 10}m"


def test_a_pod_that_the_watch_does_not_show_yet_is_asked_for(parts):
    bench = parts()
    bench.start()
    pod = bench.create("late", share(A, 2), seen=False)
    bench.admit(pod, ["id-0"])
    bench.start_container(pod)
    assert bench.api.asked > 0


def test_a_pod_that_nobody_shows_is_not_seen_and_asked_for_no_more_than_it_is_waited_for(parts):
    bench = parts(prestart_seconds=HASTY)
    bench.start()
    there, ghost = bench.create("there", share(A, 2)), bench.create("ghost", share(A, 2))
    name, edits = bench.allocator.allocate("volcano.sh/vgpu-number", frozenset({"id-0"}))
    del bench.api.pods["ghost"]
    bench.give(ghost, ["id-0"], name, edits)
    bench.wait_at_most(HASTY)
    error = refused(bench.start_container, ghost)
    bench.wait_at_most(PATIENT)
    assert error.why is BindRefusal.NOT_SEEN
    assert not error.final
    assert "refused" not in dict(bench.watcher.calls)  # there was nobody to report it to
    bench.put(ghost)
    bench.binder.wake()
    bench.admit(there, ["id-1"])
    for pod in (there, ghost):
        bench.start_container(pod)


def test_init_and_app_container_share_what_their_pod_was_promised(parts):
    bench = parts()
    bench.start()
    both = [
        ("prepare", ContainerKind.INIT, (share(A, 2),)),
        ("main", ContainerKind.APP, (share(A, 4),)),
    ]
    pod = bench.put(made("p", both))
    first = bench.admit(pod, ["id-0"], "prepare")
    second = bench.admit(pod, ["id-0"], "main")
    bench.start_container(pod, "prepare")
    assert spec(bench, first)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2048m"
    assert spec(bench, second)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"


def test_an_answer_of_another_plugin_is_none_of_our_business(parts):
    bench = parts()
    bench.start()
    theirs = bench.create("theirs", share(A, 2))
    bench.give(theirs, ["id-0"], "", ContainerEdits({"NVIDIA_VISIBLE_DEVICES": A}))
    bench.start_container(theirs)
    assert bench.saved() == {}


# ---------------------------------------------------------------- cut off


CUTS = (
    Step.ALLOCATE_ANSWERED,
    Step.BINDING_DECIDED,
    Step.CHECKPOINT_WRITTEN,
    Step.FILES_WRITTEN,
)


@BOTH
@pytest.mark.parametrize("step", CUTS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_plugin_that_dies_at_any_step_is_gone_on_with_by_the_next(parts, injector, step):
    bench = parts(injector)

    def die(reached):
        if reached is step:
            raise Killed

    first, second = bench.create("a", share(A, 2)), bench.create("b", share(A, 2))
    if step is Step.ALLOCATE_ANSWERED:
        bench.start(die)
        with pytest.raises(Killed):
            bench.admit(first, ["id-0"])
        bench.stop()
        bench.start()
        name = bench.admit(first, ["id-0"])  # the kubelet has heard nothing, and asks again
    else:
        bench.start(die)
        name = bench.admit(first, ["id-0"])
        wait_until(lambda: not bench.threads(), "the binder's thread ends")
        bench.stop()
        bench.start()
    bench.start_container(first)
    (binding,) = bench.saved()["a"].bindings
    assert (binding.name, binding.shares) == (name, (share(A, 2),))
    bench.admit(second, ["id-1"])
    bench.start_container(second)
    assert bench.saved().keys() == {"a", "b"}


@BOTH
def test_what_was_written_before_a_restart_is_not_written_again(parts, injector):
    bench = parts(injector)
    bench.start()
    pod = bench.create("a", share(A, 2))
    bench.admit(pod, ["id-0"])
    bench.start_container(pod)
    before = sorted((path, path.stat().st_mtime_ns) for path in bench.folder.rglob("*vgpu-*"))
    bench.stop()
    bench.start()
    bench.start_container(pod)
    assert sorted((p, p.stat().st_mtime_ns) for p in bench.folder.rglob("*vgpu-*")) == before
    assert bench.watcher.count("bound") == 0


# ---------------------------------------------------------------- lost


def lose(bench, name):
    """Somebody removes what a container is made with."""
    found = [*bench.folder.joinpath("handout").rglob(f"*{name}*")]
    assert found
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def bound(bench):
    """A container that is, and the name of its binding."""
    pod = bench.create("a", share(A, 2))
    name = bench.admit(pod, ["id-0"])
    bench.start_container(pod)
    return pod, name


@BOTH
def test_a_file_that_was_written_and_is_lost_is_written_again_at_a_check(parts, injector):
    bench = parts(injector)
    bench.start()
    _, name = bound(bench)
    lose(bench, name)
    bench.look_at_all()
    wait_until(lambda: bench.injector.written() == {name}, "it is rewritten")


def damage(bench, name, content):
    """Somebody, or a disk, leaves something else of what a container is made with."""
    (spec,) = bench.folder.joinpath("handout").rglob(f"*{name}*")
    (spec / "overrideEnv" if spec.is_dir() else spec).write_bytes(content)


@BOTH
@pytest.mark.parametrize("content", [b"", b"{", b"{}"], ids=["emptied", "cut", "object"])
def test_a_file_that_was_written_and_is_damaged_is_written_again_at_a_check(
    parts, injector, content
):
    bench = parts(injector)
    bench.start()
    _, name = bound(bench)
    whole = bench.injector.written()
    damage(bench, name, content)
    assert bench.injector.written() == frozenset()
    bench.look_at_all()
    wait_until(lambda: bench.injector.written() == whole, "it is rewritten")


@BOTH
@pytest.mark.parametrize("content", [b"", b"{", b"{}"], ids=["emptied", "cut", "object"])
def test_a_damaged_file_is_repaired_before_the_container_is_created(parts, injector, content):
    bench = parts(injector)
    bench.start()
    pod, name = bound(bench)
    damage(bench, name, content)
    bench.start_container(pod)
    assert bench.injector.written() == {name}
    damage(bench, name, content)
    bench.stop()
    bench.start()
    bench.start_container(pod)
    assert bench.injector.written() == {name}


def test_the_files_of_all_containers_are_checked_before_a_container_is_created(parts):
    bench = parts()
    bench.start()
    pod, _ = bound(bench)
    before = bench.watcher.count("repair")
    bench.start_container(pod)
    assert bench.watcher.count("repair") > before


@BOTH
def test_a_container_is_not_made_before_what_was_lost_is_there_again(parts, injector):
    bench = parts(injector)
    bench.start()
    pod, name = bound(bench)
    write, full = bench.injector.write, [True]

    def refusing(*what):
        if full[0]:
            raise OSError(28, "No space left on device")
        write(*what)

    bench.injector.write = refusing
    lose(bench, name)
    bench.wait_at_most(HASTY)
    assert refused_for(BindRefusal.NOT_WRITTEN, bench.start_container, pod)
    full[0] = False
    bench.wait_at_most(PATIENT)
    bench.start_container(pod)
    assert bench.injector.written() == {name}


@BOTH
def test_a_folder_that_was_removed_is_there_again_when_its_container_is_made(parts, injector):
    bench = parts(injector)
    bench.start()
    pod, name = bound(bench)
    given = sorted(bench.folder.joinpath("handout").rglob("*vgpu-*"))
    shutil.rmtree(bench.folder / "containers")
    bench.start_container(pod)
    folders = bench.adapter.folders(pod.ref, "main")
    assert all(Path(folder.path).is_dir() for folder in folders)
    assert sorted(bench.folder.joinpath("handout").rglob("*vgpu-*")) == given
    bench.stop()
    shutil.rmtree(bench.folder / "containers")
    bench.start()
    bench.start_container(pod)
    assert all(Path(folder.path).is_dir() for folder in folders)
    assert bench.injector.written() == {name}


def test_what_is_written_stays_valid_where_folders_are_made_elsewhere_now(parts):
    bench = parts()
    bench.start()
    pod, name = bound(bench)
    bench.stop()
    elsewhere = replace(bench.adapter.codec.paths, containers=str(bench.folder / "elsewhere"))
    bench.adapter = replace(bench.adapter, codec=replace(bench.adapter.codec, paths=elsewhere))
    bench.start()
    bench.start_container(pod)
    assert bench.injector.written() == {name}


# ---------------------------------------------------------------- recovered at the second try


@pytest.mark.parametrize("fails", ["injector", "watcher"])
def test_a_start_that_fails_once_is_tried_again(parts, monkeypatch, fails, caplog):
    monkeypatch.setattr("deviceplugin.allocate.binder.IDLE_SECONDS", 0.01)
    bench = parts()
    bench.start(recovered=False)
    part, word = {"injector": (bench.injector, "written"), "watcher": (bench.watcher, "recovered")}[
        fails
    ]
    works, failures = getattr(part, word), iter([OSError(5, "Input/output error")])

    def failing(*arguments):
        for error in failures:
            raise error
        return works(*arguments)

    monkeypatch.setattr(part, word, failing, raising=False)
    bench.binder.start(lambda known: bench.recover((), known))
    assert bench.binder.recovered(PATIENT)
    assert "Input/output error" in caplog.text
    bound(bench)


# ---------------------------------------------------------------- kept


def found_again(bench):
    """What a recovery finds without our checkpoint: a pod that another plugin admitted."""
    pod = bench.create("theirs", share(A, 2))
    bench.alive.add("theirs")
    allocation_state = AllocationState.of(bench.devices).admitted(pod, claimed(pod), 1.0)
    theirs = replace(allocation_state.admitted_pods["theirs"], foreign=True)
    return Recovered(replace(allocation_state, admitted_pods={"theirs": theirs}))


def test_what_was_found_at_the_start_is_kept_at_once(parts):
    """Another start may find less: the kubelet's checkpoint, or the API server, may be gone."""
    bench = parts()
    bench.start(recovered=False)
    found = found_again(bench)
    bench.binder.start(lambda _: found)
    assert bench.binder.recovered(PATIENT)
    assert bench.saved() == found.allocation_state.admitted_pods


def test_what_was_found_and_could_not_be_kept_is_kept_as_soon_as_it_can_be(parts):
    bench = parts()
    bench.start(recovered=False)
    save, full = bench.store.save, [True]

    def refusing(admitted_pods):
        if full[0]:
            raise OSError(28, "No space left on device")
        save(admitted_pods)

    bench.store.save = refusing
    found = found_again(bench)
    bench.binder.start(lambda _: found)
    bench.watcher.wait("unsaved")
    assert bench.binder.recovered(PATIENT)
    assert bench.saved() == {}
    full[0] = False
    bench.look_at_all()
    wait_until(lambda: bench.saved() == found.allocation_state.admitted_pods, "it is kept")


@pytest.mark.parametrize("content", [b"", b"{}", None], ids=["emptied", "object", "gone"])
def test_a_damaged_checkpoint_of_ours_is_written_again(parts, content):
    """Another start would go back to the one before it, or know nobody."""
    bench = parts()
    bench.start()
    bound(bench)
    saved = bench.saved()
    (path,) = bench.folder.joinpath("state").glob("*.json")
    path.unlink()
    if content is not None:
        path.write_bytes(content)

    def is_rewritten():
        bench.look_at_all()  # one look sees the damage, the next one repairs it
        return path.read_bytes() != content

    wait_until(is_rewritten, "it is rewritten", failures=(FileNotFoundError,))
    assert bench.saved() == saved
    assert bool([*path.parent.glob("*.damaged-*")]) == (content is not None)


def test_what_is_not_known_for_certain_is_not_written_over_what_is_kept(parts):
    bench = parts()
    bench.start()
    bound(bench)
    bench.stop()
    bench.api.heard = False
    bench.start(recovered=False)
    unsettled = Recovered(AllocationState.of(bench.devices), unsettled=frozenset({"a"}))
    bench.binder.start(lambda _: unsettled)
    assert bench.binder.recovered(PATIENT)
    before = len(bench.looks)
    bench.look_at_all()
    wait_until(lambda: len(bench.looks) > before, "a look at who has left")
    assert bench.saved().keys() == {"a"}


# ---------------------------------------------------------------- refused


def test_what_our_checkpoint_cannot_keep_is_not_bound_until_it_can(parts):
    bench = parts(prestart_seconds=HASTY)
    bench.start()
    save, full = bench.store.save, [True]

    def refusing(admitted_pods):
        if full[0]:
            raise OSError(28, "No space left on device")
        save(admitted_pods)

    bench.store.save = refusing
    pod = bench.create("a", share(A, 2))
    name = bench.admit(pod, ["id-0"])
    error = refused_for(BindRefusal.NOT_WRITTEN, bench.start_container, pod)
    assert "No space left" in error.detail
    assert not error.final
    assert bench.watcher.count("unsaved")
    assert bench.injector.written() == frozenset()
    assert bench.binder.state().allocation_state.admitted_pods == {}
    full[0] = False
    bench.wait_at_most(PATIENT)
    bench.start_container(pod)
    assert bench.injector.written() == {name}


def test_a_file_that_cannot_be_written_refuses_its_container_alone(parts):
    bench = parts()
    bench.start()
    write = bench.injector.write
    broken = bench.create("broken", share(A, 2))
    unlucky = set()

    def refusing(name, *rest):
        if name in unlucky:
            raise OSError(5, "Input/output error")
        write(name, *rest)

    bench.injector.write = refusing
    name, edits = bench.allocator.allocate("volcano.sh/vgpu-number", frozenset({"id-0"}))
    unlucky.add(name)
    bench.give(broken, ["id-0"], name, edits)
    fine = bench.create("fine", share(A, 2))
    bench.admit(fine, ["id-1"])
    bench.start_container(fine)
    bench.wait_at_most(HASTY)
    assert refused_for(BindRefusal.NOT_WRITTEN, bench.start_container, broken)
    unlucky.clear()
    bench.wait_at_most(PATIENT)
    bench.start_container(broken)


def test_what_the_keeper_has_not_ready_is_waited_for(parts):
    bench = parts(prestart_seconds=HASTY)
    bench.start()
    bench.watcher.failure = OSError(11, "the driver's libraries are being mirrored")
    pod = bench.create("a", share(A, 2))
    bench.admit(pod, ["id-0"])
    error = refused_for(BindRefusal.NOT_WRITTEN, bench.start_container, pod)
    assert "mirrored" in error.detail
    bench.watcher.failure = None
    bench.wait_at_most(PATIENT)
    bench.start_container(pod)


def test_a_refusal_is_reported_once(parts):
    bench = parts(prestart_seconds=HASTY)
    bench.start()
    pod = bench.create("a", share("GPU-none", 2))
    bench.admit(pod, ["id-0"])
    for _ in range(3):
        assert refused_for(BindRefusal.UNKNOWN_DEVICE, bench.start_container, pod)
    ((error,),) = [arguments for word, arguments in bench.watcher.calls if word == "refused"]
    assert error.why is BindRefusal.UNKNOWN_DEVICE


def test_without_cdi_an_answer_made_for_another_pod_is_not_started(parts):
    bench = parts(FileInjector)
    bench.start()
    first = bench.create("first", share(A, 2))
    second = bench.create("second", share(B, 2))
    name, edits = bench.allocator.allocate("volcano.sh/vgpu-number", frozenset({"id-0"}))
    owner, other = (second, first) if edits.env["NVIDIA_VISIBLE_DEVICES"] == A else (first, second)
    bench.give(owner, ["id-0"], name, edits)
    error = refused(bench.start_container, owner)
    assert error.why is BindRefusal.CROSSED
    assert error.final
    assert error.detail.endswith(
        f"this one has 2.0 GiB, 10 % of cores of {A if owner is first else B}"
    )
    assert bench.injector.written() == frozenset()
    bench.admit(other, ["id-1"])
    bench.start_container(other)


def test_without_cdi_an_answer_that_fits_the_true_owner_as_well_is_used(parts):
    bench = parts(FileInjector)
    bench.start()
    pods = [bench.create("first", share(A, 2)), bench.create("second", share(A, 3))]
    named = {}
    for pod, ids in zip(reversed(pods), (["id-0"], ["id-1"]), strict=True):  # the same GPU
        named[pod.ref.uid] = bench.admit(pod, ids)
    for gib, pod in enumerate(pods, 2):
        bench.start_container(pod)
        late = bench.folder / "handout" / "late" / "volcano" / named[pod.ref.uid] / "overrideEnv"
        assert f"CUDA_DEVICE_MEMORY_LIMIT_0={gib << 10}m\n" in late.read_text()


# ---------------------------------------------------------------- room


@pytest.mark.slow
def test_who_waits_for_room_gets_it_when_the_holder_has_left(parts):
    bench = parts()
    bench.start()
    holder, waiting = bench.create("holder", share(A, 8)), bench.create("waiting", share(A, 8))
    held = bench.admit(holder, ["id-0"])
    bench.start_container(holder)
    bench.wait_at_most(HASTY)
    bench.admit(waiting, ["id-1"])
    error = refused_for(BindRefusal.NO_ROOM, bench.start_container, waiting)
    assert "team/pod-holder" in error.detail
    assert not error.final
    bench.remove(holder)
    bench.wait_at_most(PATIENT)
    bench.start_container(waiting)
    assert bench.saved().keys() == {"waiting"}
    assert held not in bench.injector.written()


HAMI_SAYS = "volcano.sh/vgpu-ids-new"


def with_init(bench, name, init, main):
    """A pod whose init container and app container were promised so many GiB of A."""
    containers = [
        (what, kind, (share(A, gib),))
        for what, kind, gib in (
            ("fetch", ContainerKind.INIT, init),
            ("main", ContainerKind.APP, main),
        )
    ]
    text = "".join(f"{A},NVIDIA,{gib * 1024},10:;" for gib in (init, main))
    return bench.put(made(name, containers, annotations={HAMI_SAYS: text}))


@pytest.mark.slow
def test_a_pod_gets_the_room_that_an_init_container_leaves_when_it_has_succeeded(parts):
    bench = parts(prestart_seconds=HASTY)
    bench.start()
    one = with_init(bench, "one", 8, 4)
    bench.admit(one, ["x0"], "fetch")
    bench.admit(one, ["x0"], "main")
    bench.start_container(one, "fetch")
    other = bench.create("other", share(A, 6))
    bench.admit(other, ["y0"])
    refused_for(BindRefusal.NO_ROOM, bench.start_container, other)
    ended = Status(
        "fetch",
        ContainerState.TERMINATED,
        kind=ContainerKind.INIT,
        reason="Completed",
        finished_at=time.time(),
    )
    bench.put(replace(one, statuses=(ended,)))
    wait_until(lambda: "other" in bench.saved(), "the other pod is admitted")
    bench.start_container(other)
    assert bench.saved()["one"].initialized


@pytest.mark.slow
def test_who_has_lost_only_its_object_keeps_its_gpu(parts):
    bench = parts()
    bench.start()
    holder, waiting = bench.create("holder", share(A, 8)), bench.create("waiting", share(A, 8))
    bench.admit(holder, ["id-0"])
    bench.start_container(holder)
    del bench.api.pods["holder"]  # deleted by force: the container still runs
    bench.wait_at_most(3 * MAKING_ROOM_SECONDS)
    bench.admit(waiting, ["id-1"])
    assert refused_for(BindRefusal.NO_ROOM, bench.start_container, waiting)
    assert bench.saved().keys() == {"holder"}


def test_a_gpu_that_recovers_serves_those_who_wait_for_it(parts):
    bench = parts(prestart_seconds=HASTY)
    bench.start()
    bench.binder.offer(tuple(replace(gpu, healthy=gpu.uuid != A) for gpu in bench.devices))
    wait_unhealthy(bench, A)
    pod = bench.create("a", share(A, 2))
    bench.admit(pod, ["id-0"])
    assert refused_for(BindRefusal.UNHEALTHY_DEVICE, bench.start_container, pod)
    bench.wait_at_most(PATIENT)
    with ThreadPoolExecutor(1) as kubelet:
        waiting = kubelet.submit(bench.start_container, pod)
        bench.binder.offer(bench.devices)
        result_of(waiting, "the container may start")


def ill(bench):
    """The GPUs, of which A is unhealthy."""
    return tuple(replace(gpu, healthy=gpu.uuid != A) for gpu in bench.devices)


def last_conflicts(bench):
    """Details of the conflicts that were reported last, and of the remarks."""
    calls = [arguments for word, arguments in bench.watcher.calls if word == "conflicts"]
    return tuple(sorted(one.detail for one in each) for each in calls[-1]) if calls else None


def test_conflicts_are_of_now(parts):
    """Of a pod that is gone, that has ended, and of one of two that stays."""
    bench = parts()
    bench.start(recovered=False)
    gone, ended, stays = (bench.create(name) for name in ("gone", "ended", "stays"))
    found = tuple(AllocationConflict(each.ref, each.ref.uid) for each in (gone, ended, stays))
    two = AllocationConflict(None, "the same slice", frozenset({"gone", "stays"}))
    of_nobody = AllocationConflict(None, "what nobody has")
    remarks = (
        AllocationConflict(gone.ref, "a forged region"),
        AllocationConflict(stays.ref, "another"),
    )
    recovered = Recovered(
        AllocationState.of(bench.devices), (*found, two, of_nobody), remarks=remarks
    )
    bench.binder.start(lambda _: recovered)
    bench.watcher.wait("conflicts")
    everything = ["ended", "gone", "stays", "the same slice"]
    assert last_conflicts(bench) == (everything, ["a forged region", "another"])
    bench.remove(gone)
    bench.put(replace(ended, phase="Failed"))
    bench.binder.wake()
    wait_until(lambda: last_conflicts(bench) == (["stays"], ["another"]), "the others are reported")
    bench.api.heard = False
    bench.remove(stays)
    bench.binder.wake()
    bench.api.heard = True
    bench.binder.wake()
    wait_until(lambda: last_conflicts(bench) == ([], []), "none is left")


def test_a_gpu_that_is_lost_is_a_conflict_until_it_is_back_or_its_pod_has_left(parts):
    bench = parts()
    bench.start()
    pod, _ = bound(bench)
    assert last_conflicts(bench) == ([], [])
    bench.binder.offer(bench.devices[1:])
    wait_until(lambda: last_conflicts(bench) == ([f"not on this node: {A}"], []), "it is reported")
    bench.binder.offer(bench.devices)
    wait_until(lambda: last_conflicts(bench) == ([], []), "it is back")
    bench.binder.offer(bench.devices[1:])
    wait_until(lambda: last_conflicts(bench) != ([], []), "it is lost again")
    bench.remove(pod)
    bench.look_at_all()
    wait_until(lambda: last_conflicts(bench) == ([], []), "its pod has left")


def test_what_becomes_of_a_gpu_during_the_recovery_is_known_as_soon_as_that_is_over(
    parts, monkeypatch
):
    bench = parts()
    bench.start(recovered=False)
    hold, bind_all = Event(), binder_module.bind_all

    def held(*arguments, **keywords):
        hold.wait(PATIENT)
        return bind_all(*arguments, **keywords)

    monkeypatch.setattr(binder_module, "bind_all", held)  # no look ends

    def recover(known):
        found = bench.recover((), known)
        bench.binder.offer(ill(bench))
        return found

    bench.binder.start(recover)
    assert bench.binder.recovered(PATIENT)
    assert not bench.binder.state().allocation_state.named[A].healthy
    hold.set()


def test_what_becomes_of_a_gpu_outlives_a_look_that_fails(parts, monkeypatch, caplog):
    monkeypatch.setattr("deviceplugin.allocate.binder.IDLE_SECONDS", 0.01)
    bench = parts()
    bench.start()
    fails = iter([True])
    known = bench.api.known

    def failing():
        if next(fails, False):
            raise RuntimeError("a defect")
        return known()

    bench.api.known = failing
    bench.binder.offer(ill(bench))
    wait_unhealthy(bench, A)
    assert "unexpected error" in caplog.text


# ---------------------------------------------------------------- waiting


def test_a_start_that_waits_is_answered_as_soon_as_it_may(parts):
    bench = parts()
    bench.start()
    pod = bench.create("a", share(A, 2), seen=False)
    bench.api.heard = False
    name, edits = bench.allocator.allocate("volcano.sh/vgpu-number", frozenset({"id-0"}))
    bench.give(pod, ["id-0"], name, edits)
    with ThreadPoolExecutor(1) as kubelet:
        waiting = kubelet.submit(bench.start_container, pod)
        assert not waiting.done()
        bench.api.heard, bench.api.unseen = True, set()
        bench.binder.wake()
        result_of(waiting, "the container may start")


def test_nothing_may_start_before_it_is_known_who_holds_what(parts):
    bench = parts(prestart_seconds=HASTY)
    bench.start(recovered=False)
    error = refused(bench.allocator.prestart, "volcano.sh/vgpu-number", frozenset({"id-0"}))
    assert error.why is BindRefusal.NOT_RECOVERED


def test_nobody_waits_for_a_plugin_that_ends(parts):
    bench = parts()
    bench.start()
    pod = bench.create("a", share("GPU-none", 2))
    bench.admit(pod, ["id-0"])
    with ThreadPoolExecutor(1) as kubelet:
        waiting = kubelet.submit(bench.start_container, pod)
        bench.binder.stop()
        wait_until(waiting.done, "whoever waits is answered")
        assert isinstance(waiting.exception(), BindRefused)


def test_a_plugin_that_ends_does_not_wait_until_it_is_known_who_holds_what(parts):
    bench = parts()
    bench.start(recovered=False)
    begun, hold = Event(), Event()

    def recover(known):
        begun.set()
        hold.wait(PATIENT)
        return bench.recover((), known)

    bench.binder.start(recover)
    wait_until(begun.is_set, "the recovery has begun")
    bench.binder.stop()
    assert bench.threads()
    hold.set()
    wait_until(lambda: not bench.threads(), "the binder's thread ends")
    assert bench.watcher.calls == []


def test_a_plugin_that_ends_does_not_wait_for_a_repeated_recovery(parts):
    bench = parts()
    bench.start(recovered=False)
    bench.api.heard = False
    again, hold = Event(), Event()

    def recover(known):
        if bench.binder.recovered(0):
            again.set()
            hold.wait(PATIENT)
        return replace(bench.recover((), known), unsettled=frozenset({"p"}))

    bench.binder.start(recover)
    assert bench.binder.recovered(PATIENT)
    bench.api.heard = True
    bench.binder.wake()
    wait_until(again.is_set, "the recovery is made again")
    bench.watcher.calls.clear()
    bench.binder.stop()
    assert not hold.is_set()
    assert bench.threads()
    hold.set()
    wait_until(lambda: not bench.threads(), "the binder's thread ends")
    assert bench.watcher.calls == []


@pytest.mark.parametrize("unreadable", [False, True], ids=["absent", "unreadable"])
def test_a_checkpoint_of_the_kubelets_that_was_never_read_is_no_evidence_that_a_pod_has_left(
    parts, unreadable
):
    bench = parts()
    if unreadable:
        bench.kubelet_file.symlink_to(bench.kubelet_file.name)  # not even its status can be read
    bench.start()
    wait_until(lambda: bench.looks, "a look at who has left")
    assert bench.looks[0] is None


def test_while_the_kubelets_checkpoint_cannot_be_read_no_new_assignment_is_accepted(parts):
    bench = parts()
    bench.start()
    pod = bench.create("a", share(A, 2))
    name, edits = bench.allocator.allocate("volcano.sh/vgpu-number", frozenset({"id-0"}))
    bench.give(pod, ["id-0"], name, edits)
    whole = bench.kubelet_file.read_bytes()
    bench.start_container(pod)
    bench.wait_at_most(HASTY)
    bench.kubelet_file.write_bytes(whole[:-20])
    assert refused(bench.start_container, pod).why is BindRefusal.NOT_SEEN
    bench.kubelet_file.write_bytes(whole)
    bench.wait_at_most(PATIENT)
    bench.start_container(pod)


def test_the_files_of_a_pod_are_removed_when_it_has_left(parts):
    bench = parts()
    bench.start()
    first, second = bench.create("a", share(A, 2)), bench.create("b", share(A, 2))
    kept = bench.admit(second, ["id-1"])
    gone = bench.admit(first, ["id-0"])
    for pod in (first, second):
        bench.start_container(pod)
        bench.put(running(pod))
    assert bench.injector.written() == {kept, gone}
    bench.remove(first)
    bench.look_at_all()
    (left,) = bench.watcher.wait("pod_left")
    assert left.pod.uid == "a"
    assert bench.binder.settled(PATIENT)
    assert bench.saved().keys() == {"b"}
