"""What is generated from the contracts is committed, whole and unchanged."""

import msgspec
import pytest

from contracts.frames import Envelope
from contracts.generate import ROOT, SCHEMAS, generated
from contracts.golden_frames import golden_frames
from contracts.methods import METHODS, SERVICES
from mortise import generated as sdk

COMMAND = "python -m contracts.generate"


def test_regenerating_changes_nothing() -> None:
    """Schemas, golden frames and the SDK's table are those of today's contracts."""
    differing = [
        str(path)
        for path, text in generated().items()
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text
    ]
    assert not differing, f"run {COMMAND} and look at the difference"


def test_nothing_else_lies_among_the_generated_files() -> None:
    """A removed service leaves no schema or golden frame behind."""
    written = set(generated())
    folders = {path.parent for path in written if path.parent.parts[0] == "contracts"}
    assert SCHEMAS in folders
    present = {path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).iterdir()}
    assert present == {path for path in written if path.parent in folders}


@pytest.mark.parametrize("service", SERVICES)
def test_every_golden_frame_is_read_by_its_contract(service: str) -> None:
    """Request, answer and stream item decode into the structs of their row."""
    frames = golden_frames(service)
    assert frames.keys() == METHODS[service].keys()
    for name, row in METHODS[service].items():
        for kind, frame in frames[name].items():
            envelope = msgspec.msgpack.decode(frame, type=Envelope)
            if kind == "request":
                body, _context = msgspec.msgpack.decode(envelope.params, type=list[msgspec.Raw])
                msgspec.msgpack.decode(body, type=row.request)
            if kind == "response":
                msgspec.msgpack.decode(envelope.result, type=row.response)
            if kind == "notification" and row.item is not None:
                *_, item = msgspec.msgpack.decode(envelope.params, type=list[msgspec.Raw])
                msgspec.msgpack.decode(item, type=row.item)


def test_the_sdk_knows_every_method() -> None:
    """The SDK's table has each row with its time-out, idempotence and streaming."""
    for service, rows in METHODS.items():
        assert sdk.METHODS[service] == {
            name: sdk.Method(row.budget.timeout_ms, row.idempotent, row.item is not None)
            for name, row in rows.items()
        }
