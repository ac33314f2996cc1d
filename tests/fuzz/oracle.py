"""What the wire must do with a frame: in process, without a socket, and what a server then owes.

Every check that fails is an AssertionError.
"""

from dataclasses import dataclass
from enum import Enum
from random import Random

import msgspec

from contracts.frames import Notification, Request, Response
from contracts.methods import METHODS, SERVICES
from shared.wire import codec
from shared.wire.framing import Frame, Framer, HeldBytes

DECODERS = {
    name: codec.params_decoder(row)
    for service in SERVICES
    for name, row in METHODS[service].items()
}
RESPONSES = [
    codec.type_decoder(row.response) for service in SERVICES for row in METHODS[service].values()
]
SPLIT_SHARE = 0.3
"""Of the frames that are cut in two as well; property tests do the same for all splits."""


class Owed(Enum):
    """What a server does with one frame."""

    ANSWER = "exactly one response"
    NOTHING = "ignores it"
    CLOSE = "closes the connection"


@dataclass(frozen=True)
class Verdict:
    """A chunk as the wire sees it: its whole frames in order, and whether it is broken after."""

    owed: tuple[Owed, ...]
    is_broken: bool
    is_whole: bool

    @property
    def is_harmless(self) -> bool:
        """The connection lives on and is not in the middle of a frame."""
        return self.is_whole and not self.is_broken and Owed.CLOSE not in self.owed


def examine(chunk: bytes, random: Random) -> Verdict:
    """Frames are the same for another split; every decoder decodes or refuses."""
    framer = Framer(HeldBytes(1 << 30))
    frames = [bytes(frame) for frame in framer.feed(chunk)]
    if random.random() < SPLIT_SHARE:
        assert _split(chunk, random.randrange(len(chunk) + 1)) == (frames, framer.fault is None)
    whole = sum(map(len, frames))
    assert chunk[:whole] == b"".join(frames)
    return Verdict(
        owed=tuple(_owed(frame, random) for frame in frames),
        is_broken=framer.fault is not None,
        is_whole=whole == len(chunk),
    )


def _split(chunk: bytes, cut: int) -> tuple[list[bytes], bool]:
    """The frames when the chunk arrives in two parts, and whether it is unbroken."""
    framer = Framer(HeldBytes(1 << 30))
    frames = [bytes(frame) for part in (chunk[:cut], chunk[cut:]) for frame in framer.feed(part)]
    return frames, framer.fault is None


def _owed(frame: Frame, random: Random) -> Owed:
    try:
        envelope = codec.decode_envelope(frame)
    except codec.DECODE_ERRORS:
        try:
            codec.decode_addressed(frame)
        except codec.DECODE_ERRORS:
            return Owed.CLOSE
        return Owed.ANSWER
    if isinstance(envelope, Request):
        _decode(envelope.method, envelope.params, random)
        return Owed.ANSWER
    if isinstance(envelope, Response):
        _refuses_or_decodes(random.choice(RESPONSES), envelope.result)
        _refuses_or_decodes(codec.decode_error, envelope.error)
    elif isinstance(envelope, Notification):
        _refuses_or_decodes(codec.decode_stream, envelope.params)
        _refuses_or_decodes(codec.decode_cancel, envelope.params)
    return Owed.NOTHING


def _decode(method: str, params: msgspec.Raw, random: Random) -> None:
    decode = DECODERS.get(method) or DECODERS[random.choice(list(DECODERS))]
    if not _refuses_or_decodes(decode, params):
        codec.context_of(params)


def _refuses_or_decodes(decode: object, raw: msgspec.Raw) -> bool:
    assert callable(decode)
    try:
        decode(raw)
    except codec.DECODE_ERRORS as error:
        text = codec.reason(error)
        assert len(text) <= codec.reason_characters_max, text
        assert text.isprintable(), text
        return False
    return True
