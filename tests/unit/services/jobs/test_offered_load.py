"""Frames of the open loop, and its answers from a socket."""

import asyncio
import tempfile
from pathlib import Path

import msgpack

from services.jobs.offered_load import ID_MARK, OfferedLoad, Template

BODY = {"model_name": "tiny", "text": ["a"]}


def test_a_frame_carries_its_msgid_and_an_id_of_its_own() -> None:
    """Every copy of the template is a whole request that nobody else sends."""
    template = Template(BODY)
    frames = [msgpack.unpackb(template.frame(msgid)) for msgid in (65_537, 2**32 - 1)]
    assert [frame[1] for frame in frames] == [65_537, 2**32 - 1]
    ids = {frame[3][0]["id"] for frame in frames}
    assert len(ids) == 2
    assert all(len(one) == len(ID_MARK) for one in ids)
    assert frames[0][3][0] | {"id": ""} == {**BODY, "id": ""}


async def test_answers_refusals_and_lost_connections_are_counted_apart() -> None:
    """Of every three requests one is answered, one refused, one never; what stays open when the
    connection ends is lost."""
    seen = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        unpacker = msgpack.Unpacker()
        while chunk := await reader.read(65_536):
            unpacker.feed(chunk)
            for _, msgid, _, _ in unpacker:
                seen += 1
                if seen % 3 == 0:
                    writer.write(msgpack.packb([1, msgid, None, {"id": "x"}]))
                elif seen % 3 == 1:
                    writer.write(msgpack.packb([1, msgid, {"name": "OVERLOADED"}, None]))
                if seen == 30:
                    for other in writers:
                        other.close()
        writer.close()

    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    with tempfile.TemporaryDirectory(prefix="mo", dir="/tmp") as folder:
        path = str(Path(folder) / "s")
        async with await asyncio.start_unix_server(accept, path):
            load = OfferedLoad(path, [Template(BODY)], rate_per_s=3_000.0, seconds=0.01)
            measured = await load.run()
    assert measured.sent == 30
    assert len(measured.latencies_s) == 10
    assert measured.failures == {"OVERLOADED": 10, "CONNECTION_LOST": 10}
    assert len(load.sample()) == 10
    assert load.sample() == []
