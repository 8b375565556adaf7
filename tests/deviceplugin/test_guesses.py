"""Which pods answers were made for in vain, once the kubelet has written down whose they were."""

from deviceplugin.allocate import allocator as allocator_module
from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.allocator import PATIENCE, Guesses
from deviceplugin.allocate.binder_state import BinderState, by_ids
from deviceplugin.reasons import BindRefusal, BindRefused
from tests.deviceplugin.allocation_values import GPUS, assignment, pod

OWNER = pod("owner")


def seen(*names, why=BindRefusal.CROSSED):
    """What the binder found: answers that are the owner's, each of another container."""
    found = [assignment(OWNER, name, name, (name,)) for name in names]
    refusals = {("owner", name): BindRefused(why, "") for name in names}
    return BinderState(AllocationState.of(GPUS), by_ids(found), refusals)


def noted(*names, uid="guessed"):
    guesses = Guesses()
    for name in names:
        guesses.note(name, uid)
    return guesses


NAMES = tuple(f"n{at}" for at in range(PATIENCE))


def test_after_some_crossed_answers_a_pod_is_unlikely():
    assert noted(*NAMES).unlikely(seen(*NAMES)) == {"guessed"}


def test_one_wrong_guess_may_be_a_neighbours_turn():
    assert not noted(*NAMES).unlikely(seen(*NAMES[1:]))


def test_a_wrong_guess_counts_once_however_often_it_is_seen():
    guesses = noted(NAMES[0])
    for _ in range(PATIENCE):
        assert not guesses.unlikely(seen(NAMES[0]))


def test_what_was_found_wrong_is_known_when_its_owner_has_gone():
    guesses = noted(*NAMES)
    guesses.unlikely(seen(*NAMES))
    assert guesses.unlikely(seen()) == {"guessed"}


def test_a_pod_that_the_kubelet_asks_for_after_all_is_as_likely_as_others():
    guesses = noted(*NAMES)
    assert guesses.unlikely(seen(*NAMES)) == {"guessed"}
    guesses.note("own", "another")
    its = assignment(pod("guessed"), "main", "own", ("own",))
    assert not guesses.unlikely(BinderState(AllocationState.of(GPUS), by_ids([its])))


def test_an_answer_whose_owner_is_not_bound_for_another_reason_is_no_evidence_yet():
    guesses = noted(*NAMES)
    assert not guesses.unlikely(seen(*NAMES, why=BindRefusal.NOT_SEEN))
    assert guesses.unlikely(seen(*NAMES)) == {"guessed"}


def test_answers_that_never_find_an_owner_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(allocator_module, "MOST_GUESSES", 10)
    newest = tuple(f"lost-{number}" for number in range(10))
    guesses = noted(*NAMES, *newest)
    assert not guesses.unlikely(seen(*NAMES))
    assert guesses.unlikely(seen(*newest)) == {"guessed"}
