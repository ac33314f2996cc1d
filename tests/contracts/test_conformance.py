"""The conformance suite against a real server that keeps its contract, and ones that do not."""

import asyncio
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.description import describe
from contracts.errors import MeshError
from contracts.methods import METHODS, SERVICES
from contracts.samples import sample
from mortise.cli.app import run
from mortise.cli.conformance import CHANGING, Outcome, verify
from shared.access import Access
from shared.rpc.server import Call, Server
from tests.unit.mortise.fake_server import FakeServer


def handlers(service: str) -> dict[str, Any]:
    """Each method of the service answers with its sample."""

    def answering(name: str) -> Any:
        return lambda call: msgspec.Raw(msgspec.msgpack.encode(sample(call.row.response)))

    return {name: answering(name) for name in METHODS[service] if name not in ("ping", "describe")}


@contextlib.asynccontextmanager
async def served(service: str, **replaced: Any) -> AsyncIterator[str]:
    """A server of the real kind on a socket of its own, with some handlers replaced."""
    path = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp")) / "s.sock"
    table = handlers(service) | replaced
    server = Server(service, table, instance=f"{service}.0-test", access=Access.owner())
    await server.start_path(path)
    try:
        yield str(path)
    finally:
        await server.drain(1.0)
        path.unlink()
        path.parent.rmdir()


def failures(outcomes: list[Outcome]) -> dict[str, str]:
    """Name → reason of the checks that failed."""
    return {one.name: one.reason for one in outcomes if not one.passed}


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_that_keeps_its_contract_passes(service: str) -> None:
    """Every check of every method passes, and every method was checked."""
    async with served(service) as path:
        outcomes = await asyncio.to_thread(verify, path)
    assert failures(outcomes) == {}
    names = {one.name for one in outcomes}
    for method in METHODS[service]:
        assert f"{method}: a body of the wrong type is refused" in names
        assert (f"{method}: the golden request is answered" in names) == (method not in CHANGING)


async def test_an_answer_that_breaks_its_type_is_found() -> None:
    """A field of the wrong type in a reply fails the golden request's check."""

    def wrong(call: Call) -> msgspec.Raw:
        return msgspec.Raw(msgspec.msgpack.encode({"models": "none"}))

    async with served("orchestrator", models=wrong) as path:
        found = failures(await asyncio.to_thread(verify, path))
    assert list(found) == ["models: the golden request is answered"]


async def test_an_internal_error_is_found() -> None:
    """INTERNAL is a defect, though every method may answer it."""

    def defect(call: Call) -> Any:
        raise MeshError("INTERNAL", "a defect")

    async with served("orchestrator", models=defect) as path:
        found = failures(await asyncio.to_thread(verify, path))
    assert list(found) == ["models: the golden request is answered"]
    assert "INTERNAL" in found["models: the golden request is answered"]


async def test_another_contract_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service of other rows differs in `describe`, by part and name."""
    async with served("orchestrator") as path:
        assert not failures(
            await asyncio.to_thread(verify, path)
        )  # the server has described itself
        rows = METHODS["orchestrator"]
        faster = dataclasses.replace(rows["models"], budget=rows["ping"].budget)
        monkeypatch.setitem(METHODS, "orchestrator", {**rows, "models": faster})
        describe.cache_clear()
        found = failures(await asyncio.to_thread(verify, path))
        describe.cache_clear()
    assert found == {"describe equals the contract": "methods differ in models"}


def test_a_socket_of_someone_else_fails_at_once() -> None:
    """A peer that answers something else is told apart by `describe`."""
    with FakeServer(lambda number, frame: [b"HTTP/1.1 400\r\n"]) as server:
        outcomes = verify(str(server.path))
    assert failures(outcomes).keys() == {"describe is answered"}


async def test_the_command_prints_a_table_and_its_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`mortise contracts verify --socket S`: 0 when all pass, 1 otherwise, 3 when it is down."""
    async with served("orchestrator") as path:
        line = ["contracts", "verify", "--socket", path]
        assert await asyncio.to_thread(run, line) == 0
        assert "checks passed" in capsys.readouterr().out
        assert await asyncio.to_thread(run, [*line, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["passed"] is True
    with FakeServer(lambda number, frame: [None]) as server:
        assert await asyncio.to_thread(run, [*line[:-1], str(server.path)]) == 1
    assert run(line) == 3
    capsys.readouterr()


def test_every_method_that_changes_something_is_known() -> None:
    """The suite replays no request that may not be repeated."""
    rows = {name: row for table in METHODS.values() for name, row in table.items()}
    assert rows.keys() >= CHANGING
    assert {name for name, row in rows.items() if not row.idempotent} <= CHANGING
