"""The check of every event in the cluster tests finds what it is to find."""

import pytest

from tests.cluster.kubeshare_watch import CARD, PORTS, Replay, Share

PORT = PORTS[0]
BOUND = Share("a", "n1", "gpu", 600, 1, "GPU-0", PORT)
PLACED = BOUND._replace(uuid="", port=0)
OTHER = Share("b", "n1", "gpu", 400, 1, "GPU-0", PORT + 1)


def complaints(*events):
    """What is found in (UID, share or None) one after another."""
    replay = Replay({"n1"})
    for number, (uid, share) in enumerate(events):
        about = {"uid": uid, "name": uid, "resourceVersion": str(number)}
        kind = "DELETED" if share is None else "MODIFIED"
        replay.see(kind, {"metadata": about, "share": share}, lambda found: found["share"])
    return [text.partition(": ")[2] for text in replay.broken]


def test_what_the_controllers_do_is_no_complaint():
    moved = BOUND._replace(node="n1", gpuid="next", uuid="GPU-1", port=PORT + 2)
    steps = [("a", PLACED), ("a", BOUND), ("pod-a", BOUND), ("b", OTHER), ("pod-b", OTHER)]
    steps += [("pod-a", None), ("a", PLACED), ("a", moved._replace(uuid="", port=0)), ("a", moved)]
    elsewhere = OTHER._replace(node="n2", milli=5000)
    assert not complaints(*steps, ("c", elsewhere), ("a", None), ("pod-b", None), ("b", None))


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([("a", BOUND), ("b", OTHER._replace(milli=401))], "1001 thousandths"),
        ([("a", PLACED), ("b", PLACED._replace(owner="b"))], "1200 thousandths and 2 bytes placed"),
        ([("a", BOUND), ("b", OTHER._replace(memory=CARD))], f"{CARD + 1} bytes"),
        ([("pod-a", BOUND), ("b", OTHER._replace(milli=500))], "1100 thousandths"),
        ([("a", BOUND), ("b", OTHER._replace(uuid="GPU-1"))], "has the GPUs"),
        ([("a", BOUND), ("b", OTHER._replace(port=PORT))], f"port {PORT} of 2"),
        ([("a", BOUND), ("b", OTHER._replace(gpuid="x", port=PORT))], f"port {PORT} of 2"),
        ([("a", BOUND._replace(port=0))], "with port 0"),
        ([("a", BOUND._replace(port=50049))], "with port 50049"),
        ([("a", BOUND), ("a", BOUND._replace(uuid="GPU-1"))], "bound twice: uuid GPU-0"),
        ([("a", BOUND), ("a", BOUND._replace(port=PORT + 1))], f"bound twice: port {PORT}"),
        ([("a", BOUND), ("pod-a", BOUND._replace(port=PORT + 1))], "otherwise than its pod"),
        ([("a", BOUND), ("pod-a", BOUND._replace(gpuid="x"))], "on two virtual GPUs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_must_not_be_is_found(events, complaint):
    assert complaint in " | ".join(complaints(*events))
