"""Many clients of one server: all are served, and one over the cap is told so."""

import asyncio
import resource
import sys
from collections.abc import Callable, Iterator

import pytest

from contracts.errors import MeshError
from contracts.limits import connections_max_default
from contracts.types import Empty
from shared.rpc.client import RpcClient
from shared.rpc.server import descriptors_reserved
from tests.integration.wire.raw import RawClient
from tests.integration.wire.toy import Toy

CROWD = 5_000
SERVED_S_MAX = 60.0


@pytest.fixture(scope="module", autouse=True)
def _descriptors() -> Iterator[None]:
    """As many as the server wants by default, or as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if most < CROWD + 2 * descriptors_reserved:
        pytest.skip(f"the hard limit of descriptors is {hard}, too low for {CROWD} clients")
    wanted = min(most, connections_max_default + descriptors_reserved)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _connect_at_once(path: str, count: int) -> list[RpcClient]:
    """So many clients, all dialling before any of them is served; each has had an answer."""
    clients = [RpcClient(path, "orchestrator") for _ in range(count)]
    await asyncio.gather(
        *(client.call("ping", Empty(), timeout_s=SERVED_S_MAX) for client in clients)
    )
    return clients


async def test_five_thousand_clients_at_once_are_all_served(
    start_toy: Callable[..., Toy],
) -> None:
    """None is refused, and all stay connected until the last one was served."""
    toy = start_toy()
    clients = await _connect_at_once(toy.path, CROWD)
    counted = await asyncio.to_thread(toy.statistics)
    await asyncio.gather(*(client.call("ping", Empty()) for client in clients[:100]))
    await asyncio.gather(*(client.close() for client in clients))
    assert counted["connections"] == CROWD + 1
    assert counted["refused_connections"] == counted["refused"] == 0


async def test_over_the_cap_clients_are_refused_and_the_others_undisturbed(
    start_toy: Callable[..., Toy],
) -> None:
    """OVERLOADED with a hint, the connection closed; room comes back."""
    toy = start_toy("50")
    clients = await _connect_at_once(toy.path, 50)
    late = RpcClient(toy.path, "orchestrator")
    with pytest.raises(MeshError, match="connections_max is 50") as caught:
        await late.call("ping", Empty())
    assert caught.value.name == "OVERLOADED"
    assert caught.value.retry_after_ms
    await asyncio.gather(*(client.call("ping", Empty()) for client in clients))
    await clients[0].close()
    with RawClient(toy.path) as raw:
        assert await asyncio.to_thread(raw.call, "ping") == (None, {})
    await asyncio.gather(late.close(), *(client.close() for client in clients))
