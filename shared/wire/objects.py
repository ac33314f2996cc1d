"""Counts the MessagePack objects of a large frame, so that a bomb by count is refused.

A pass over 16 MiB of one-byte integers takes 80 ms even in C, and a raw field is passed over more
than once. A legal large frame is large because of its `bin` and `str` payloads, so it holds few
objects. Counting many takes long too, so it is done in slices, one a loop turn. No I/O.
Source: the MessagePack specification, "Formats".
"""

counted_bytes_min = 1024 * 1024
"""Only longer frames are counted: C passes over this many one-byte objects in 8 ms."""
objects_max = 524_288
"""Objects (keys and values alike) in a counted frame: 4,096 rows of 64 columns. One whose length
field is wider than a byte counts as `WIDE`: it takes longer, and rarely holds less than 256 bytes.
"""
turn_objects_max = 32_768
"""Counted in one loop turn, about 5 ms."""
WIDE = 4

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
_SHORT = (0xC4, 0xD9)  # bin 8 and str 8
_WINDOW_BYTES = 65_536
_LENGTH_BYTES_MAX = 6  # head, type and length field, which may reach over a window's end


class ObjectCount:
    """Walks over one complete frame, a slice at a time."""

    __slots__ = ("_left", "_position", "_view")

    def __init__(self, frame: bytes | memoryview, limit: int = objects_max) -> None:
        self._view = memoryview(frame)
        self._position = 0
        self._left = limit

    def advance(self, objects: int = turn_objects_max) -> bool | None:
        """Count so many more. True: all are counted and within the limit; False: there are more
        than the limit; None: not done yet."""
        budget = min(objects, self._left)
        while budget > 0 and self._position < len(self._view):
            taken = self._walk_window(budget)
            budget -= taken
            self._left -= taken
        if self._position >= len(self._view):
            return self._left >= 0
        return None if self._left > 0 else False

    def _walk_window(self, budget: int) -> int:
        """Walk through the next window, or as far as the budget goes; what it took."""
        start = self._position
        raw = bytes(self._view[start : start + _WINDOW_BYTES + _LENGTH_BYTES_MAX])
        end = min(_WINDOW_BYTES, len(raw))
        step_of = _STEP
        offset = taken = 0
        while offset < end and taken < budget:
            taken += 1
            head = raw[offset]
            step = step_of[head]
            if step:
                offset += step
            elif head in _SHORT:
                offset += 2 + raw[offset + 1]
            else:
                width, fixed = _LENGTH[head]
                field = raw[offset + 1 : offset + 1 + width]
                offset += fixed + width + int.from_bytes(field, "big")
                taken += WIDE - 1
        self._position = start + offset
        return taken
