"""Values of every MessagePack format, at the edges of its range."""

import msgpack
from hypothesis import strategies as st

EDGES = (0, 1, 31, 32, 255, 256, 65_535, 65_536)
SCALARS = (
    None, True, False, 0.0, -1.5, float("inf"),
    *(2**bits - 1 for bits in (5, 7, 8, 16, 31, 32, 63, 64)),
    *(2**bits for bits in (5, 7, 8, 16, 31, 32, 63)),
    *(-(2**bits) for bits in (5, 7, 15, 31, 63)),
    *("x" * length for length in EDGES[:6]),
    *(b"x" * length for length in EDGES[:6]),
    *(msgpack.ExtType(5, b"x" * length) for length in (1, 2, 3, 4, 8, 16, 17, 256)),
    "zażółć", b"\x94\x00\x01\xc1",
)  # fmt: skip
LONG = ("x" * 70_000, b"\0" * 70_000, list(range(70_000)), dict.fromkeys(range(70_000)))

values = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.sampled_from("abcdefghijklmnopq"), inner, max_size=6),
    ),
    max_leaves=8,
)
messages = st.lists(values, min_size=3, max_size=4).map(msgpack.packb)
streams = st.lists(messages, max_size=4)
cuts = st.lists(st.integers(0, 10_000), max_size=8)
