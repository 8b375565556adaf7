"""What Allocate answers, and what it refuses."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from deviceplugin.allocate import allocator as allocator_module
from deviceplugin.failpoints import Step
from deviceplugin.injection.cdi import CdiInjector
from deviceplugin.injection.files import FileInjector
from deviceplugin.reasons import BindRefusal, BindRefused
from tests.deviceplugin.allocation_values import MEMORY, NUMBER, A, B, share
from tests.deviceplugin.plugin_parts import HASTY, PATIENT, Parts
from tests.support.waiting import result_of
from vgpu.schemes.codec import ContainerEdits

IDS = frozenset({"id-0"})


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Parts(...) in this test's folder; they end with it."""
    monkeypatch.setattr("deviceplugin.adapters.volcano.LOCK_FOLDER", str(tmp_path / "lock"))
    monkeypatch.setattr(allocator_module, "RECOVERY_PATIENCE_SECONDS", HASTY)
    monkeypatch.setattr(allocator_module, "SETTLING_SECONDS", PATIENT)
    made = []

    def make(injector=CdiInjector, **options):
        made.append(Parts(tmp_path, injector, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def refused(bench, resource=NUMBER, ids=IDS):
    with pytest.raises(BindRefused) as caught:
        bench.allocator.allocate(resource, ids)
    return caught.value


# ---------------------------------------------------------------- with CDI


def test_with_cdi_an_answer_is_a_fresh_name_and_nothing_of_any_pod(parts):
    bench = parts()
    bench.start()
    bench.create("a", share(A, 2))
    answers = [bench.allocator.allocate(NUMBER, IDS) for _ in range(3)]
    names = {name for name, _ in answers}
    assert len(names) == 3
    assert all(re.fullmatch("[0-9a-f]{24}", name) for name in names)
    assert {frozenset(edits.env.items()) for _, edits in answers} == {
        frozenset({("NVIDIA_VISIBLE_DEVICES", "void")})
    }
    assert all(edits == ContainerEdits(edits.env) for _, edits in answers)
    assert bench.binder.expecting() == 3


def test_resources_that_only_count_are_answered_with_nothing(parts):
    bench = parts()
    bench.start()
    assert bench.allocator.allocate(MEMORY, IDS) == ("", ContainerEdits({}))
    assert bench.binder.expecting() == 0
    bench.allocator.prestart(MEMORY, IDS)
    assert bench.waits()["prestart"] == 0


def test_what_nobody_can_be_asking_for_is_refused_by_name(parts):
    bench = parts()
    bench.start()
    bench.create("wants-one", share(A, 2))
    error = refused(bench, ids=frozenset({"id-0", "id-1"}))
    assert error.why is BindRefusal.NO_CANDIDATE
    assert f"2 of {NUMBER} were requested" in str(error)
    assert "team/pod-wants-one wants 1 (container main)" in str(error)
    assert bench.refusals() == {("allocate", BindRefusal.NO_CANDIDATE): 1}


def test_nobody_is_refused_before_the_api_server_was_asked_afresh(parts):
    bench = parts()
    bench.start()
    bench.create("unseen", share(A, 2), seen=False)
    bench.allocator.allocate(NUMBER, IDS)
    assert bench.api.asked == 1
    bench.create("seen", share(A, 2))
    bench.allocator.allocate(NUMBER, IDS)
    assert bench.api.asked == 1  # the watch has reported it


def test_a_name_needs_no_request_where_a_served_pod_may_be_asked_for_again(parts):
    bench = parts()
    bench.start()
    served = bench.create("served", share(A, 2))
    bench.admit(served, IDS)
    bench.allocator.allocate(NUMBER, frozenset({"id-1"}))
    assert bench.api.asked == 0


def test_while_the_api_server_is_unreachable_names_are_allocated(parts):
    bench = parts()
    bench.start()
    bench.create("a", share(A, 2))
    bench.api.heard = False
    name, _ = bench.allocator.allocate(NUMBER, IDS)
    assert name


def test_before_the_recovery_nothing_is_answered(parts):
    bench = parts()
    bench.start(recovered=False)
    assert refused(bench).why is BindRefusal.NOT_RECOVERED
    assert refused(bench, MEMORY).why is BindRefusal.NOT_RECOVERED


def test_allocate_waits_for_the_recovery(parts, monkeypatch):
    monkeypatch.setattr(allocator_module, "RECOVERY_PATIENCE_SECONDS", PATIENT)
    bench = parts()
    bench.create("a", share(A, 2))
    bench.start(recovered=False)
    with ThreadPoolExecutor(1) as kubelet:
        waiting = kubelet.submit(bench.allocator.allocate, NUMBER, IDS)
        assert not waiting.done()
        bench.binder.start(lambda _known: bench.recover((), _known))
        assert result_of(waiting, "Allocate is answered")[0]


# ---------------------------------------------------------------- without


def test_without_cdi_the_answer_is_the_first_candidates(parts):
    bench = parts(FileInjector)
    bench.start()
    bench.create("a", share(B, 2))
    name, edits = bench.allocator.allocate(NUMBER, IDS)
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == B
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in edits.env  # comes late, when it is known for whom
    assert any(mount.host.endswith(f"{name}/overrideEnv") for mount in edits.mounts)


def test_without_cdi_a_pod_that_is_not_seen_yet_comes_before_one_that_is_served(parts):
    bench = parts(FileInjector)
    bench.start()
    served = bench.create("served", share(A, 2))
    bench.admit(served, IDS)
    bench.create("unseen", share(B, 2), seen=False)
    _, edits = bench.allocator.allocate(NUMBER, frozenset({"id-1"}))
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == B


def test_without_cdi_nothing_is_guessed_while_the_api_server_is_not_heard(parts):
    bench = parts(FileInjector)
    bench.start()
    bench.create("a", share(B, 2))
    bench.api.heard = False
    error = refused(bench)
    assert error.why is BindRefusal.NOT_SEEN
    assert "API server" in str(error)
    assert not error.final


def test_without_cdi_a_guess_that_the_pod_could_not_get_is_refused(parts):
    bench = parts(FileInjector)
    bench.start()
    bench.create("too-much", share(A, 99))
    error = refused(bench)
    assert error.why is BindRefusal.NO_ROOM
    assert bench.binder.expecting() == 0


def test_a_guess_waits_until_it_is_known_for_whom_the_one_before_was(parts):
    bench = parts(FileInjector)
    bench.start()
    first, second = bench.create("a", share(A, 2)), bench.create("b", share(B, 2))
    name, edits = bench.allocator.allocate(NUMBER, IDS)
    with ThreadPoolExecutor(1) as kubelet:
        later = kubelet.submit(bench.allocator.allocate, NUMBER, frozenset({"id-1"}))
        assert not later.done()
        bench.give(first, ["id-0"], name, edits)
        _, edits = result_of(later, "the later guess is made")
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == B
    assert second


def test_a_pod_that_is_never_asked_for_is_not_guessed_for_ever(parts):
    bench = parts(FileInjector)
    bench.start()
    bench.create("never", share(A, 2), created_at=1.0)
    for at, whose in enumerate(("crossed-0", "crossed-1", "served")):
        pod = bench.create(whose, share(B, 2), created_at=2.0)
        bench.admit(pod, [f"id-{at}"])
        if whose == "served":
            bench.start_container(pod)
            continue
        with pytest.raises(BindRefused) as caught:
            bench.start_container(pod)
        assert caught.value.why is BindRefusal.CROSSED
        bench.remove(pod)  # the reconciler's eviction, long before the next Allocate


# ---------------------------------------------------------------- the original's refusal


def test_the_originals_refusal_is_an_answer_and_is_counted_as_a_refusal(parts):
    bench = parts(legacy=lambda count, devices: {"REFUSED": f"{count} of {len(devices)} GPUs"})
    bench.start()
    assert bench.allocator.allocate(NUMBER, IDS) == (
        "",
        ContainerEdits({"REFUSED": "1 of 3 GPUs"}),
    )
    assert bench.refusals() == {("allocate", BindRefusal.NO_CANDIDATE): 1}


# ---------------------------------------------------------------- what is logged


def test_every_step_is_logged(parts):
    bench = parts()
    steps = []
    bench.start(steps.append)
    pod = bench.create("a", share(A, 2))
    bench.admit(pod, ["id-0"])
    bench.start_container(pod)
    asked = [one for one in steps if "asked" in one or "answered" in one]
    assert asked == [
        Step.ALLOCATE_ASKED,
        Step.ALLOCATE_ANSWERED,
        Step.PRESTART_ASKED,
        Step.PRESTART_ANSWERED,
    ]
    bound = [one for one in steps if one not in asked]
    assert bound == [Step.BINDING_DECIDED, Step.CHECKPOINT_WRITTEN, Step.FILES_WRITTEN]


def test_waits_and_answers_are_counted(parts):
    bench = parts()
    bench.start()
    pod = bench.create("a", share(A, 2))
    bench.admit(pod, ["id-0"])
    bench.start_container(pod)
    bench.wait_at_most(HASTY)
    with pytest.raises(BindRefused):
        bench.allocator.prestart(NUMBER, frozenset({"nobody's"}))
    assert bench.waits() == {"allocate": 1, "bind": 0, "prestart": 1}
    assert bench.refusals() == {("prestart", BindRefusal.NOT_SEEN): 1}
    assert bench.numbers.counted()["allocations"] == {NUMBER: 1}
