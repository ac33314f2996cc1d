"""Finds the end of one large MessagePack frame in what has arrived so far, a slice at a time.

The C scanner keeps a second copy of a large payload and counts nothing; this walk steps over
payloads and counts objects, so that a bomb by count is refused before it is whole. It runs in
Python, about 0.15 µs an object, hence the slices. No I/O.
Source: the MessagePack specification, "Formats".
"""

from enum import Enum

from contracts.limits import frame_objects_max, frame_str_bytes_max

slice_work = 16_384
"""Objects stepped over at once, about 3 ms; a loop turn may see two slices."""
MEASURED_WORK = 5
"""An object whose head has to be measured takes so many times longer than one of fixed size."""


class Violation(Exception):
    """The frame breaks a limit or is no MessagePack."""


class Progress(Enum):
    """Why the walk stopped."""

    DONE = "the frame ends at `position`"
    NEEDS_BYTES = "more must arrive"
    NEEDS_TURN = "the slice is used up"


# Bytes from one object's head to the next head, for objects of fixed size; 0 marks all others.
_STEP = bytearray(256)
for _heads, _step in (
    ((*range(0x80), 0xC0, 0xC2, 0xC3, *range(0xE0, 0x100)), 1),  # fixint, nil, bool
    ((0xCC, 0xD0), 2),  # int 8
    ((0xCD, 0xD1), 3),  # int 16
    ((0xCE, 0xD2, 0xCA), 5),  # int 32, float 32
    ((0xCF, 0xD3, 0xCB), 9),  # int 64, float 64
    ((0xD4,), 3), ((0xD5,), 4), ((0xD6,), 6), ((0xD7,), 10), ((0xD8,), 18),  # fixext
):  # fmt: skip
    for _head in _heads:
        _STEP[_head] = _step
for _head in range(0xA0, 0xC0):  # fixstr
    _STEP[_head] = 1 + (_head & 0x1F)

# bin, ext and str with a length field: bytes of that field, and of head and type besides.
_PAYLOAD = {
    0xC4: (1, 1), 0xC5: (2, 1), 0xC6: (4, 1), 0xC7: (1, 2), 0xC8: (2, 2), 0xC9: (4, 2),
    0xD9: (1, 1), 0xDA: (2, 1), 0xDB: (4, 1),
}  # fmt: skip
_STR_32 = 0xDB
# Containers with a length field: bytes of that field, objects per item.
_CONTAINER = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_HEAD_BYTES_MAX = 6


class Walk:
    """Where one frame's walk is.

    The walk is flat: a container adds its items to the objects that are still to come.
    """

    __slots__ = ("_left", "_objects", "position")

    def __init__(self) -> None:
        self.position = 0
        self._left = 1
        self._objects = 0

    def advance(self, held: bytearray) -> Progress:
        """Walk on in the frame's bytes so far, which begin with its head. Raises Violation."""
        step_of, size = _STEP, len(held)
        position, left = self.position, self._left
        work, objects = slice_work, self._objects
        is_cut = False  # the next head is not whole yet
        while left and position < size and work > 0:
            head = held[position]
            step = step_of[head]
            if step:
                position += step
            else:
                is_cut = size - position < _HEAD_BYTES_MAX and size - position < _head_bytes(head)
                if is_cut:
                    break
                step, items = _measure(held, position)
                position += step
                left += items
                work -= MEASURED_WORK - 1
            left -= 1
            work -= 1
            objects += 1
        self.position, self._left, self._objects = position, left, objects
        if objects > frame_objects_max:
            raise Violation(f"the frame holds more objects than {frame_objects_max=}")
        if not left and position <= size:
            return Progress.DONE
        if not left or position >= size or is_cut:
            return Progress.NEEDS_BYTES
        return Progress.NEEDS_TURN


def _head_bytes(head: int) -> int:
    """Bytes of a head with its length field."""
    if head in _PAYLOAD:
        width, fixed = _PAYLOAD[head]
        return width + fixed
    return 1 + _CONTAINER[head][0] if head in _CONTAINER else 1


def _measure(held: bytearray, position: int) -> tuple[int, int]:
    """Bytes to the next head, and how many objects the container at `position` opens."""
    head = held[position]
    if head in _PAYLOAD:
        width, fixed = _PAYLOAD[head]
        length = int.from_bytes(held[position + 1 : position + 1 + width], "big")
        if head == _STR_32 and length > frame_str_bytes_max:
            raise Violation(f"the frame holds a str of {length} bytes, {frame_str_bytes_max=}")
        return fixed + width + length, 0
    if head in _CONTAINER:
        width, objects = _CONTAINER[head]
        items = int.from_bytes(held[position + 1 : position + 1 + width], "big")
        return 1 + width, items * objects
    if head == 0xC1:
        raise Violation("not MessagePack: the byte 0xc1")
    return 1, (head & 0x0F) * (2 if head < 0x90 else 1)  # fixmap, fixarray
