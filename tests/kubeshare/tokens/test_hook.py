"""The daemon and Gemini's hook: recorded streams of the real one, and a model of each version."""

import pytest

from tests.kubeshare.tokens.gemini_process import MIB, own_address, pod, write
from tests.kubeshare.tokens.hook_model import OUT_OF_MEMORY, VERSIONS, HookProcess
from tests.kubeshare.tokens.recorded_streams import QUOTA, Replay, lines, type_of
from tests.kubeshare.tokens.recorded_streams import VERSIONS as RECORDED
from tests.kubeshare.tokens.test_daemon import seen
from tests.support.waiting import wait_until


def hook(version, port=50051, **options):
    return HookProcess((own_address(), port), version=version, **options)


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("version", RECORDED)
def test_the_real_hook_gets_the_bytes_of_its_pod_manager(serve, tmp_path, version, step):
    """But for the lengths of tokens, which depend on the time."""
    write(tmp_path, [pod("a")])
    serve()
    asked = {}
    with Replay(50051, step) as replay:
        for number, sign, content in lines("hook", version):
            if sign == ">":
                replay.send(number, content)
                asked[number] = type_of(content)
            elif asked[number] == QUOTA:
                assert replay.receive(number)[:4] == content[:4]
            else:
                assert replay.receive(number) == content


@pytest.mark.parametrize("version", VERSIONS)
def test_memory_above_the_limit_is_never_allocated(serve, tmp_path, version):
    """The hook compares with what is free, allocates, and frees nothing that is refused then."""
    write(tmp_path, [pod("a")])
    server = serve()
    with hook(version) as one:
        assert [one.allocate(600 * MIB) for _ in range(5)] == [0, *[OUT_OF_MEMORY] * 4]
        assert one.memory_info() == (424 * MIB, 1024 * MIB)
        with hook(version) as two:
            assert [two.allocate(300 * MIB) for _ in range(2)] == [0, OUT_OF_MEMORY]
            assert two.memory_info() == (124 * MIB, 1024 * MIB)
            assert (one.real, two.real) == (600 * MIB, 300 * MIB)
            assert seen(server).booked == 900 * MIB
            assert seen(server).counts.refused == 0, "nothing was refused after its allocation"
    wait_until(lambda: seen(server).booked == 0, "the ends of both are seen")


def test_a_limit_that_is_lowered_below_what_is_used_leaves_nothing(serve, tmp_path):
    write(tmp_path, [pod("a")])
    server = serve()
    with hook("v1.0") as process:
        assert process.allocate(600 * MIB) == 0
        write(tmp_path, [pod("a", memory=500 * MIB)])
        wait_until(lambda: seen(server).entry.share.memory_bytes == 500 * MIB, "the new limit")
        assert process.memory_info() == (0, 500 * MIB)
        assert process.allocate(1) == OUT_OF_MEMORY
        assert process.real == 600 * MIB
