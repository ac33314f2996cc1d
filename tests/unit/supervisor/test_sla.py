"""The history of a mesh: looked at, written, read again."""

from pathlib import Path

from contracts.policies import PolicySet, RoutePolicy, RouteSpec
from contracts.service import Metrics
from services.orchestrator.observe import Observed
from shared.clock import ManualClock
from shared.home import RuntimeTable
from supervisor.in_force import InForce
from supervisor.sla import Sla, write_s
from tests.unit.services.orchestrator.making import plan_for

PLAN = plan_for()


class Place:
    """A home's history, an orchestrator's counters, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sla.msgpack"
        self.clock = ManualClock()
        self.observed = Observed()
        self.instance = "orchestrator.0-a"
        self.is_up = True
        self.in_force = InForce(folder, RuntimeTable(memory_mib_max=700, threads=3))

    async def ask(self) -> Metrics | None:
        """As a probe does."""
        if not self.is_up:
            return None
        return Metrics(metrics=self.observed.collect(), instance=self.instance)

    def supervisor(self) -> Sla:
        """A supervisor that starts in this home."""
        return Sla(self.ask, self.in_force, self.path, self.path.parent, self.clock)

    def restart(self) -> None:
        """Another orchestrator."""
        self.observed, self.instance = Observed(), self.instance + "a"


async def ends(sla: Sla, window: str = "5m") -> tuple[int, int]:
    """Requests and failures of `tiny` in one window; asking looks once more."""
    for row in (await sla.report()).rows:
        if (row.model, row.window) == ("tiny", window):
            return row.requests, sum(row.errors.values())
    return 0, 0


async def test_the_windows_survive_orchestrators_and_supervisors(tmp_path: Path) -> None:
    """Each one's requests are counted once; what was reported is on the disk, so a supervisor that
    is killed after it leaves it to its successor."""
    place = Place(tmp_path)
    sla = place.supervisor()
    place.observed.answered(PLAN, 2_000, 0, 0, 0)
    assert await ends(sla) == (1, 0)
    place.restart()
    place.observed.ended(PLAN, "INTERNAL")
    assert await ends(sla) == (2, 1)
    place.restart()  # with its supervisor, which writes nothing more
    sla = place.supervisor()
    assert await ends(sla) == (2, 1)
    place.observed.answered(PLAN, 2_000, 0, 0, 0)
    assert await ends(sla) == await ends(sla, "30d") == (3, 1)


async def test_windows_roll_with_the_clock(tmp_path: Path) -> None:
    """An hour later the failure is a day's alone."""
    place = Place(tmp_path)
    sla = place.supervisor()
    place.observed.ended(PLAN, "OVERLOADED")
    assert await ends(sla) == (1, 1)
    place.clock.advance(4_000.0)
    assert await ends(sla) == await ends(sla, "1h") == (0, 0)
    assert await ends(sla, "24h") == (1, 1)


async def test_it_is_written_once_a_minute_and_when_something_changed(tmp_path: Path) -> None:
    """And at the end, with what came since the last look."""
    place = Place(tmp_path)
    sla = place.supervisor()
    place.clock.advance(write_s)
    await sla.look()
    assert not place.path.exists(), "nothing was counted"
    place.observed.answered(PLAN, 2_000, 0, 0, 0)
    await sla.look()
    assert not place.path.exists(), "not yet"
    place.clock.advance(write_s)
    await sla.look()
    assert place.path.exists()
    assert place.path.stat().st_mode & 0o777 == 0o600
    place.observed.answered(PLAN, 2_000, 0, 0, 0)
    await sla.close()
    place.restart()
    assert await ends(place.supervisor()) == (2, 0)


async def test_an_orchestrator_that_is_down_is_said(tmp_path: Path) -> None:
    """The figures are those of the last look, and every routed model has its rows."""
    place = Place(tmp_path)
    sla = place.supervisor()
    place.is_up = False
    place.in_force.policies = PolicySet(
        version=3, policies=[RoutePolicy(name="big", spec=RouteSpec(default="1"))]
    )
    report = await sla.report()
    assert (report.is_current, report.policy_version) == (False, 3)
    assert [(row.model, row.window, row.missed) for row in report.rows] == [
        ("big", window, []) for window in ("5m", "1h", "24h", "30d")
    ]


async def test_a_file_that_cannot_be_read_begins_anew(tmp_path: Path) -> None:
    """Cut off, foreign or of another format; it is replaced by the next report."""
    place = Place(tmp_path)
    for content in (b"", b"\xff", b"\x82\xa6format\x09\xa4kept\x81\xa7began_s\x01"):
        place.path.write_bytes(content)
        place.restart()
        place.observed.answered(PLAN, 2_000, 0, 0, 0)
        assert await ends(place.supervisor()) == (1, 0)


async def test_a_disk_that_fails_costs_the_history_alone(tmp_path: Path) -> None:
    """Reports go on from memory; with the disk back it is written."""
    place = Place(tmp_path)
    sla = place.supervisor()
    blocker = place.path.with_suffix(".new")
    blocker.mkdir()
    place.observed.answered(PLAN, 2_000, 0, 0, 0)
    assert await ends(sla) == (1, 0)
    assert not place.path.exists()
    blocker.rmdir()
    assert await ends(sla) == (1, 0)
    assert place.path.exists()
