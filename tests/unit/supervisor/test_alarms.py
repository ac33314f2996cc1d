"""When a limit of a process is alarmed, and when that is over."""

from dataclasses import replace

import pytest

from contracts.infrastructure import (
    BUILT_IN,
    FIELDS,
    REACTIONS,
    REMEDIES,
    RESOURCES,
    UNITS,
    Terms,
    terms_of,
)
from contracts.policies import InfrastructureSpec
from supervisor.alarms import Alarms, text_of, window_s
from supervisor.proc import Sample

MIB = 1024 * 1024
TERMS = Terms(
    limits={"memory": 100.0, "cpu": 2.0, "descriptors": 10.0, "socket": 50.0, "disk": 20.0},
    alarm_share=0.85,
    over_share=0.75,
    memory_reaction="shed",
    shed_classes=(3,),
)
IDLE = Sample(0.0, cpu_s=0.0, resident_bytes=MIB, descriptors=3, storage_bytes=0, call_bytes=0)


def changes(alarms: Alarms, sample: Sample, terms: Terms = TERMS) -> dict[str, bool]:
    """Resource → whether its alarm began."""
    return {change.resource: change.is_raised for change in alarms.take(sample, terms)}


def test_memory_is_alarmed_at_its_share_until_below_the_lower_one() -> None:
    """84.9 is none, 85 is one, 75 still is, 74.9 is over: each told once."""
    alarms, told = Alarms(), []
    for used in (84.9, 85.0, 99.0, 84.0, 75.0, 74.9, 84.9):
        told.append(changes(alarms, replace(IDLE, resident_bytes=int(used * MIB) + 1)))
    assert told == [{}, {"memory": True}, {}, {}, {}, {"memory": False}, {}]


def test_an_alarm_tells_limit_received_and_remedy() -> None:
    """The field of the policy by its name."""
    alarms = Alarms()
    (change,) = alarms.take(replace(IDLE, resident_bytes=90 * MIB), TERMS)
    assert text_of(change) == (
        "memory: 90 MiB used, memory_mib_max is 100; ask for less at once, deploy fewer versions,"
        " or declare more"
    )
    assert alarms.texts() == [text_of(change)]


def test_what_counts_by_the_second_needs_a_whole_window() -> None:
    """A burst of a second is no alarm; the same over ten seconds is one, and it ends when the
    window has passed."""
    alarms = Alarms()
    seconds = int(window_s)
    for at_s in range(seconds):
        busy = replace(IDLE, at_s=float(at_s), cpu_s=2.0 * at_s)
        assert changes(alarms, busy) == {}
        assert alarms.usage["cpu"] is None, "not known before a window has passed"
    assert changes(alarms, replace(IDLE, at_s=window_s, cpu_s=2.0 * window_s)) == {"cpu": True}
    assert alarms.usage["cpu"] == 2.0
    last: dict[str, bool] = {}
    for at_s in range(seconds + 1, 2 * seconds + 1):
        last |= changes(alarms, replace(IDLE, at_s=float(at_s), cpu_s=2.0 * window_s))
    assert last == {"cpu": False}
    assert alarms.usage["cpu"] == 0.0


def test_bytes_of_storage_are_not_counted_as_those_of_sockets() -> None:
    """What calls moved less what storage did; both by the second."""
    alarms = Alarms()
    changes(alarms, IDLE)
    moved = replace(IDLE, at_s=10.0, storage_bytes=190 * MIB, call_bytes=300 * MIB)
    assert changes(alarms, moved) == {"disk": True}
    assert (alarms.usage["disk"], alarms.usage["socket"]) == (19.0, 11.0)


def test_what_the_kernel_does_not_tell_is_absent_and_never_alarmed() -> None:
    """Not zero: nobody may take it for measured."""
    alarms = Alarms()
    changes(alarms, replace(IDLE, storage_bytes=None, call_bytes=None))
    late = replace(IDLE, at_s=10.0, storage_bytes=None, call_bytes=None)
    assert changes(alarms, late) == {}
    assert (alarms.usage["disk"], alarms.usage["socket"]) == (None, None)


def test_a_raised_limit_ends_the_alarm() -> None:
    """The terms are those in force at the sample."""
    alarms = Alarms()
    assert changes(alarms, replace(IDLE, descriptors=9)) == {"descriptors": True}
    roomy = replace(TERMS, limits={**TERMS.limits, "descriptors": 100.0})
    assert changes(alarms, replace(IDLE, descriptors=9), roomy) == {"descriptors": False}


def test_terms_are_the_policy_s_then_the_home_s_then_built_in() -> None:
    """Field by field."""
    spec = InfrastructureSpec(descriptors_max=77, memory_reaction="alarm", shed_classes=["3", "2"])
    terms = terms_of("model_runtime", spec, {"memory": 512, "cpu": 3})
    assert terms.limits == {
        **BUILT_IN["model_runtime"], "memory": 512, "cpu": 3, "descriptors": 77,
    }  # fmt: skip
    assert (terms.memory_reaction, terms.shed_classes) == ("alarm", (2, 3))
    assert terms_of("model_runtime", None, {}).memory_reaction == "unload"


@pytest.mark.parametrize("service", BUILT_IN)
def test_every_service_has_every_limit(service: str) -> None:
    """None means never unlimited; each has its unit, field and remedy."""
    for table in (BUILT_IN[service], UNITS, FIELDS, REMEDIES):  # type: ignore[index]
        assert set(table) == set(RESOURCES)
    assert service in REACTIONS
    assert set(FIELDS.values()) <= set(InfrastructureSpec.__struct_fields__)
