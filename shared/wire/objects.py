"""Counts the MessagePack objects of a large frame, so that a bomb by count is refused cheaply.

A pass over 16 MiB of one-byte integers takes 80 ms even in C, and a raw field is passed over more
than once. A legal large frame is large because of its `bin` and `str` payloads, so it holds few
objects; one that holds many is refused after `objects_max` steps.
Source: the MessagePack specification, "Formats".
"""

counted_bytes_min = 512 * 1024
"""Only longer frames are counted: this many one-byte objects pass in 4 ms."""
objects_max = 262_144
"""Objects (keys and values alike) in a counted frame: 4,096 rows of 32 columns."""

assert objects_max <= counted_bytes_min, "a frame too short to be counted may hold more, not less"

# Bytes from one object's head to the next head. A container's head is followed by its elements,
# so the walk is flat. 0 marks the heads whose length field follows.
_STEP = bytearray(b"\x01" * 256)
for _head in range(0xA0, 0xC0):  # fixstr
    _STEP[_head] = 1 + (_head & 0x1F)
for _heads, _step in (
    ((0xCC, 0xD0), 2),  # int 8
    ((0xCD, 0xD1, 0xDC, 0xDE), 3),  # int 16, array 16, map 16
    ((0xCE, 0xD2, 0xCA, 0xDD, 0xDF), 5),  # int 32, float 32, array 32, map 32
    ((0xCF, 0xD3, 0xCB), 9),  # int 64, float 64
    ((0xD4,), 3),
    ((0xD5,), 4),
    ((0xD6,), 6),
    ((0xD7,), 10),
    ((0xD8,), 18),  # fixext 1, 2, 4, 8, 16
    ((0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xD9, 0xDA, 0xDB), 0),
):
    for _head in _heads:
        _STEP[_head] = _step

# bin, ext and str of variable length: bytes of the length field, bytes of head and type besides.
_LENGTH = {
    0xC4: (1, 1), 0xC5: (2, 1), 0xC6: (4, 1), 0xC7: (1, 2), 0xC8: (2, 2), 0xC9: (4, 2),
    0xD9: (1, 1), 0xDA: (2, 1), 0xDB: (4, 1),
}  # fmt: skip


def has_too_many_objects(frame: bytes | memoryview, limit: int = objects_max) -> bool:
    """Whether a complete frame holds more than `limit` objects. Takes ≤ `limit` steps."""
    step_of = _STEP
    position, end = 0, len(frame)
    for _ in range(limit):
        if position >= end:
            return False
        step = step_of[frame[position]]
        if step:
            position += step
            continue
        width, head = _LENGTH[frame[position]]
        length = int.from_bytes(frame[position + 1 : position + 1 + width], "big")
        position += head + width + length
    return position < end
