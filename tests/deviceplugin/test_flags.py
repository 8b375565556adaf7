"""The flags of `vgpu device-plugin`: what they mean, and the messages when they are wrong."""

import pytest
from click.testing import CliRunner

from deviceplugin import main
from vgpu.model.names import Scheme
from vgpu.model.units import GIB, MIB
from vgpucli.main import main as cli


@pytest.fixture
def call(monkeypatch):
    """Runs the command; what it would have been run with, or its message."""
    started = []
    monkeypatch.setattr(main, "run", lambda options, judged, driver: started.append(options))

    def called(*flags, **env):
        result = CliRunner().invoke(cli, ["device-plugin", *flags], env=env)
        return started.pop() if started else result

    return called


def message_of(result):
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_without_a_scheme_nothing_can_be_served(call):
    assert "Missing option '--scheme'" in message_of(call())
    assert "kubeshare" in message_of(call("--scheme=kubeshare"))


def test_a_flag_that_is_not_set_has_the_default_in_the_help(call):
    options = call("--scheme=volcano")
    assert options.scheme is Scheme.VOLCANO
    assert (options.cdi, options.volcano_memory_factor) == (True, 1)
    assert (options.gpushare_memory_unit, options.gaia_share_mode) == (GIB, True)
    assert (options.health_interval, options.prestart_timeout) == (15.0, 20.0)
    assert options.node_name  # the host's
    help_ = " ".join(call("--help").output.split())
    assert help_.count("[default: on]") == 2
    assert "[default: 20s]" in help_
    assert "too small here. [default: 1]" in help_
    assert "[default: 1.0; 0.01<=x<=100]" in help_


def test_every_flag_is_also_an_environment_variable(call):
    options = call(
        VGPU_SCHEME="gpushare",
        VGPU_CDI="false",
        VGPU_GPUSHARE_MEMORY_UNIT="256MiB",
        VGPU_WEB_LISTEN_ADDRESS=":1 :2",
        NODE_NAME="node-7",
        VGPU_HEALTH_INTERVAL="500ms",
    )
    assert options.scheme is Scheme.GPUSHARE
    assert not options.cdi
    assert options.gpushare_memory_unit == 256 * MIB
    assert options.web_listen_address == (":1", ":2")
    assert options.node_name == "node-7"
    assert options.health_interval == 0.5


@pytest.mark.parametrize(
    ("text", "factor"), [("1", 1), ("1024", 1024), ("1048576", 2**20), ("auto", None)]
)
def test_a_memory_factor_is_a_number_or_auto(call, text, factor):
    options = call("--scheme=volcano", f"--volcano.memory-factor={text}")
    assert options.volcano_memory_factor == factor


@pytest.mark.parametrize(
    ("text", "unit"), [("GiB", GIB), ("MiB", MIB), ("256MiB", 256 * MIB), ("2GiB", 2 * GIB)]
)
def test_a_memory_unit_is_one_or_so_many(call, text, unit):
    options = call("--scheme=gpushare", f"--gpushare.memory-unit={text}")
    assert options.gpushare_memory_unit == unit


def test_labels_are_kept_in_their_order(call):
    options = call("--scheme=gaia", "--gaia.node-label=b=2", "--gaia.node-label=a.io/x=")
    assert options.gaia_node_label == (("b", "2"), ("a.io/x", ""))


@pytest.mark.parametrize(
    "flags",
    [
        ("--scheme=volcano", "--volcano.memory-factor=0"),
        ("--scheme=volcano", "--volcano.memory-factor=-1"),
        ("--scheme=volcano", "--volcano.memory-factor=1048577"),
        ("--scheme=volcano", "--volcano.memory-factor=٣"),
        ("--scheme=volcano", "--volcano.memory-factor=1e3"),
        ("--scheme=volcano", "--volcano.split-count=0"),
        ("--scheme=volcano", "--volcano.memory-scaling=0"),
        ("--scheme=volcano", "--volcano.dialect=klingon"),
        ("--scheme=volcano", "--volcano.handshake=perhaps"),
        ("--scheme=gpushare", "--gpushare.memory-unit=GB"),
        ("--scheme=gpushare", "--gpushare.memory-unit=0MiB"),
        ("--scheme=gaia", "--gaia.node-label=key"),
        ("--scheme=gaia", "--gaia.node-label=a b=c"),
        ("--scheme=volcano", "--health.interval=0s"),
        ("--scheme=volcano", "--prestart-timeout=soon"),
        ("--scheme=volcano", "--log.level=loud"),
        ("--scheme=volcano", "--health.ignore-xids=31,x"),
    ],
)
def test_a_wrong_value_names_its_flag(call, flags):
    assert flags[1].partition("=")[0] in message_of(call(*flags))


@pytest.mark.parametrize(
    ("scheme", "flag"),
    [
        ("gpushare", "--volcano.split-count=2"),
        ("volcano", "--gpushare.memory-unit=MiB"),
        ("volcano", "--no-gaia.share-mode"),
        ("gaia", "--volcano.oversubscribe"),
    ],
)
def test_a_flag_of_another_scheme_is_refused_unless_the_environment_has_it(call, scheme, flag):
    name = flag.removeprefix("--no-").removeprefix("--").partition("=")[0]
    complaint = message_of(call(f"--scheme={scheme}", flag))
    assert f"--{name} is of no use with --scheme {scheme}" in complaint


def test_the_environment_may_serve_several_programs(call):
    assert call("--scheme=gpushare", VGPU_VOLCANO_SPLIT_COUNT="2").volcano_split_count == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--scheme=volcano", "--legacy-refusal"), "--legacy-refusal is gpushare's"),
        (("--scheme=volcano", "--no-cdi", "--cdi.spec-dir=/x"), "--cdi.spec-dir is of no use"),
        (("--scheme=volcano", "--run-dir=/x"), "--run-dir is of no use with --cdi"),
        (
            ("--scheme=volcano", "--volcano.dialect=hami", "--volcano.memory-factor=auto"),
            "--volcano.memory-factor auto",
        ),
    ],
)
def test_flags_that_contradict_each_other_are_named(call, flags, words):
    assert words in message_of(call(*flags))


def test_what_the_originals_variables_say_of_health_is_read(call):
    assert call("--scheme=volcano", DP_DISABLE_HEALTHCHECKS="31,48").scheme is Scheme.VOLCANO
    complaint = message_of(call("--scheme=volcano", DP_DISABLE_HEALTHCHECKS="31,none"))
    assert "DP_DISABLE_HEALTHCHECKS" in complaint
