"""Whose a segment is, in what every version of HAMi and Volcano writes.

``p`` is a container that asks for nothing, ``g`` one that asks for a GPU, ``d`` one that asks for
another vendor's device. The texts that are marked as run were written by that version's own code.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Share
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, Pod
from vgpu.model.units import MIB
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.volcano.codec import HAMI, Volcano

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
HAMIS, VOLCANOS = Volcano(HAMI), Volcano(memory_factor=64)
LIMITS = {"p": {}, "d": {"hygon.com/dcunum": 1}}


def entry(uuid, memory, cores=0):
    return f"{uuid},NVIDIA,{memory},{cores}:"


def pod(codec, inits, apps, text, *, kinds=None, renamed=False):
    """Containers i0, i1 … and c0, c1 …; the kinds are those of ``inits``."""
    asks = {"g": {"own/gpu" if renamed else codec.key_set.number: 1}}
    kinds = kinds or [INIT] * len(inits)
    specs = [
        *(Container(f"c{at}", (LIMITS | asks).get(what, {})) for at, what in enumerate(apps)),
        *(
            Container(f"i{at}", (LIMITS | asks).get(what, {}), kind)
            for at, (what, kind) in enumerate(zip(inits, kinds, strict=True))
        ),
    ]
    annotations = {codec.key_set.devices: text}
    return Pod(PodRef("u", "ml", "train"), annotations=annotations, containers=tuple(specs))


def read_shares(codec, *arguments, **options):
    """Container -> (device, MiB) of each share."""
    claim = codec.claim(pod(codec, *arguments, **options))
    return {
        each.container: [(share.device, share.memory_bytes // MIB) for share in each.shares]
        for each in claim.allocations
    }


A1, A2, A3 = entry("A", 1000), entry("A", 2000), entry("A", 3000)
ONE, TWO, THREE = [("A", 1000)], [("A", 2000)], [("A", 3000)]

WORKED = {
    "1: run, 2.5.3, 2.6.1, 2.10": ("", "pg", f"{A1};", {"c1": ONE}),
    "2: run, 2.8.3, 2.9.0": ("", "pg", f";{A1};", {"c1": ONE}),
    "3: run, 2.5.3": ("", "gp", f"{A1};,,0,0:;", {"c0": ONE}),
    "4: run, 2.6.1 to 2.9.0": ("", "pgp", f";{A1};;", {"c1": ONE}),
    "5: run, 2.5.3": ("", "pgp", f"{A1};;,,0,0:;", {"c1": ONE}),
    "6: run, 2.10": ("", "gpg", f"{A1};{A2};", {"c0": ONE, "c2": TWO}),
    "7: run, 2.9.0, 2.10": ("g", "g", f"{A3};{A1};", {"i0": THREE, "c0": ONE}),
    "8: run, 2.8.3": ("g", "g", f"{A1};", {"c0": ONE}),
    "9: run, 2.10": ("pg", "pgpg", f"{A3};{A1};{A2};", {"i1": THREE, "c1": ONE, "c3": TWO}),
    "9: run, 2.9.0": ("pg", "pgpg", f";{A3};;{A1};;{A2};", {"i1": THREE, "c1": ONE, "c3": TWO}),
    "10: run": (
        "",
        "gg",
        f"{entry('B', 1000)}{A1};{entry('B', 4096)};",
        {"c0": [("B", 1000), ("A", 1000)], "c1": [("B", 4096)]},
    ),
    "11: run, 2.8.3, 2.9.0": ("", "gdg", f";{A1};{A1};", {"c0": ONE, "c2": ONE}),
    "plain init containers, 2.10": ("pp", "gg", f"{A1};{A2};", {"c0": ONE, "c1": TWO}),
}


@pytest.mark.parametrize(("inits", "apps", "text", "holders"), WORKED.values(), ids=WORKED)
def test_each_worked_example_is_read(inits, apps, text, holders):
    assert read_shares(HAMIS, inits, apps, text) == holders


def test_volcano_writes_for_app_containers_in_its_unit_whatever_init_containers_ask():
    text = f"{entry('B', 64, 30)};{entry('B', 10)}{entry('A', 10)}"
    assert read_shares(VOLCANOS, "g", "pgg", text) == {
        "c1": [("B", 4096)],
        "c2": [("B", 640), ("A", 640)],
    }
    slot = VOLCANOS.claim(pod(VOLCANOS, "g", "g", "B[group1-0],NVIDIA,64,30:"))
    assert slot.allocations[0].shares == (Share("B[group1-0]", 4096 * MIB, 300),)


def test_a_container_with_two_vendors_has_only_the_devices_that_are_ours():
    """Up to 2.9 the vendor that is handled second gets the entries of the first one too."""
    assert read_shares(HAMIS, "", "g", f"C,DCU,500,0:{A1};") == {"c0": ONE}


@pytest.mark.parametrize(
    ("inits", "apps", "text"),
    [
        ("", "gg", f"{A1};"),
        ("", "g", f"{A1};{A2};"),
        ("gg", "gg", f"{A1};{A2};{A3};"),
        ("g", "", f"{A1};{A2};"),
    ],
)
def test_another_number_of_segments_is_not_this_pods(inits, apps, text):
    with pytest.raises(ClaimError, match="segments with devices, where"):
        read_shares(HAMIS, inits, apps, text)


# ---------------------------------------------------------------- generated pods


def hami_2_5(inits, apps, segment):
    """None for init containers; none before the first g, a placeholder after it."""
    text, begun = "", False
    for name, what in apps:
        if what == "g":
            text, begun = text + segment(name) + ";", True
        elif begun:
            text += ",,0,0:;"
    return text


def hami_2_6(inits, apps, segment):
    """Those before the first g are put in front only if a later p follows a g."""
    kinds = "".join(what for _, what in apps)
    front = kinds.index("g") if "g" in kinds else 0
    kept = apps if "p" in kinds[front:] else apps[front:]
    return "".join((segment(name) if what == "g" else "") + ";" for name, what in kept)


def hami_2_8(inits, apps, segment):
    """Every app container has one; those of another vendor in front (prepended)."""
    ours = [each for each in apps if each[1] != "d"]
    others = ";" * (len(apps) - len(ours))
    return others + "".join((segment(name) if what == "g" else "") + ";" for name, what in ours)


def hami_2_9(inits, apps, segment):
    return hami_2_8((), [*inits, *apps], segment)


def hami_2_10(inits, apps, segment):
    """Just those that ask, init containers first."""
    return "".join(f"{segment(name)};" for name, what in (*inits, *apps) if what == "g")


def volcano(inits, apps, segment):
    return ";".join(segment(name) for name, what in apps if what == "g")


WRITERS = {
    "HAMi 2.5": (HAMIS, hami_2_5, False),
    "HAMi 2.6": (HAMIS, hami_2_6, False),
    "HAMi 2.8": (HAMIS, hami_2_8, False),
    "HAMi 2.9": (HAMIS, hami_2_9, True),
    "HAMi 2.10": (HAMIS, hami_2_10, True),
    "Volcano": (VOLCANOS, volcano, False),
}


@st.composite
def written(draw, kinds="pgd"):
    """Language, init containers, their kinds, app containers, the text, and who has what."""
    codec, write, for_init = WRITERS[draw(st.sampled_from(sorted(WRITERS)))]
    inits = draw(st.text(kinds, max_size=4))
    apps = draw(st.text(kinds, min_size=1, max_size=4))
    of_kind = draw(
        st.lists(st.sampled_from([INIT, SIDECAR]), min_size=len(inits), max_size=len(inits))
    )
    before = [(f"i{at}", what) for at, what in enumerate(inits)]
    after = [(f"c{at}", what) for at, what in enumerate(apps)]
    served = [name for name, what in (*(before if for_init else ()), *after) if what == "g"]
    names = {name: [f"GPU-{name}-{at}" for at in range(draw(st.integers(1, 3)))] for name in served}

    def segment(name):
        return "".join(entry(uuid, 64) for uuid in names[name])

    return codec, inits, of_kind, apps, write(before, after, segment), names


def devices(codec, case, **options):
    _, inits, kinds, apps, text, _ = case
    claim = codec.claim(pod(codec, inits, apps, text, kinds=kinds, **options))
    return {
        each.container: [share.device for share in each.shares]
        for each in (claim.allocations if claim else ())
    }


@given(written())
def test_every_version_of_every_writer_is_read(case):
    assert devices(case[0], case) == case[-1]


@given(written())
def test_where_nobody_is_known_to_ask_nobody_gets_anothers_devices(case):
    """With a resource that has a name of the operator's, beside other vendors' devices."""
    try:
        read_devices = devices(case[0], case, renamed=True)
    except ClaimError as refused:
        assert "HAMi up to 2.8" in str(refused)  # noqa: PT017  # either is right
        assert "HAMi from 2.9" in str(refused)  # noqa: PT017
    else:
        assert read_devices == case[-1]


@pytest.mark.parametrize(
    ("inits", "apps", "text"),
    [("", "gd", f";{A1};"), ("", "gdg", f";{A1};{A2};"), ("d", "g", f";{A1};")],
)
def test_a_renamed_resource_beside_another_vendors_cannot_be_assigned_by_position(
    inits, apps, text
):
    """Up to 2.9 the other vendor's containers have their segments in front."""
    with pytest.raises(ClaimError, match=r"HAMi up to 2\.8"):
        read_shares(HAMIS, inits, apps, text, renamed=True)


def test_a_renamed_resource_beside_an_init_container_cannot_be_assigned_in_either_reading():
    with pytest.raises(ClaimError) as refused:
        read_shares(HAMIS, "g", "g", f"{A1};", renamed=True)
    assert "app containers among c0 (HAMi up to 2.8" in str(refused.value)
    assert "any among i0, c0 (HAMi from 2.9)" in str(refused.value)
