"""What a child gets before it does anything."""

import msgspec

from shared import channel
from shared.channel import Beat, Durations, FromChild, Hello, Promoted, Ready, Stopped
from shared.home import AccessTable, Config
from shared.inheritance import (
    Facts,
    decode_facts,
    encode_facts,
    format_descriptors,
    parse_descriptors,
    receive,
)


def test_facts_survive_the_way_down() -> None:
    """The facts are the same on the other side, the service's table still encoded."""
    table = Config(home_version=1).placed(4).table("model_runtime")
    facts = Facts(
        supervisor_pid=1, service="model_runtime", index=0, instance="model_runtime.0-00",
        home="/h", run_dir="/h/r", table=msgspec.Raw(msgspec.msgpack.encode(table)), replicas=1,
        replicas_max=2, access={"7": AccessTable(roles=["client"])}, infra="sha256:0",
        standby=True, started_us=5, trace_id="t", restarts=3, drain_s=5.0,
        log_bytes_max=10, log_files_max=2,
    )  # fmt: skip
    arrived = decode_facts(encode_facts(facts))
    assert arrived.access == facts.access
    assert msgspec.msgpack.decode(arrived.table, type=type(table)) == table
    assert (arrived.standby, arrived.restarts, arrived.run_dir) == (True, 3, "/h/r")


def test_descriptors_have_names() -> None:
    """The variable's text gives back the numbers."""
    numbers = {"config": 3, "control": 4, "listen": 5}
    assert parse_descriptors(format_descriptors(numbers)) == numbers
    assert parse_descriptors("") == {}


def test_without_a_supervisor_nothing_is_inherited() -> None:
    """A service started by hand knows that it was."""
    assert receive() is None


def test_every_message_of_a_child_is_told_apart() -> None:
    """One decoder reads each kind back."""
    messages: list[FromChild] = [
        Hello(7), Ready({"import": 0.1}), Durations({"map": 0.2}), Beat(0.0), Promoted(), Stopped(),
    ]  # fmt: skip
    decoder = msgspec.msgpack.Decoder(FromChild)
    assert [decoder.decode(msgspec.msgpack.encode(message)) for message in messages] == messages
    assert all(
        len(msgspec.msgpack.encode(message)) < channel.message_bytes_max for message in messages
    )
