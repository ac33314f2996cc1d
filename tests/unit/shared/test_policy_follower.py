"""The follower against a real socket: its disk, its answers, and a control plane that comes and
goes."""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.distribution import Acknowledge, PolicyItem, Position, Report, Reported, Subscribe
from contracts.methods import METHODS
from contracts.policies import BatchingPolicy, BatchingSpec, PolicySet
from contracts.types import UNSET, Empty
from shared.access import Access
from shared.clock import ManualClock
from shared.environment import Environment
from shared.last_good import LastGood
from shared.policy_follower import PolicyFollower, ReportParts
from shared.rpc.server import DEFERRED, Call, Server


def at(sequence: int, epoch: int = 1) -> Position:
    """A place in the log."""
    return Position(epoch=epoch, sequence=sequence, hash=f"sha256:{sequence:064x}")


def policies(version: int) -> PolicySet:
    """A set that differs with its version."""
    rows = [BatchingPolicy(name="m", spec=BatchingSpec(rows_max=version or 1))]
    return PolicySet(version=version, policies=list(rows))


def item(action: str, sequence: int, *, carries: bool = True, epoch: int = 1) -> PolicyItem:
    """An item of the stream."""
    return PolicyItem(
        action=action,  # type: ignore[arg-type]
        position=at(sequence, epoch),
        policies=policies(sequence) if carries else UNSET,
    )


class Teller:
    """A control plane's socket that says what the test wants and remembers what it heard."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first: PolicyItem | None = item("activate", 1)
        self.head = at(1)
        self.subscriptions: list[Subscribe] = []
        self.heard: list[Acknowledge] = []
        self.reports: list[Report] = []
        self.on_goodbye: Callable[[], None] = lambda: None
        self._calls: list[Call] = []
        self._server: Server | None = None

    async def start(self) -> None:
        """Serve."""
        self.path.unlink(missing_ok=True)
        handlers: dict[str, Callable[[Call], Any]] = dict.fromkeys(
            set(METHODS["control_plane"]) - {"ping", "describe"}, lambda call: Empty()
        )
        handlers |= {
            "subscribe": self._subscribe,
            "acknowledge": self._acknowledge,
            "report": self._report,
        }
        self._server = Server(
            "control_plane", handlers, instance="control_plane.0-t", access=Access.owner()
        )
        await self._server.start_path(self.path)

    async def stop(self) -> None:
        """End as a killed process would: connections are cut."""
        assert self._server is not None
        await self._server.drain(0.0)

    def send(self, what: PolicyItem) -> None:
        """Say it to the newest subscriber."""
        self._calls[-1].stream(what)

    def states(self) -> list[tuple[str, int]]:
        """What was acknowledged, in order."""
        return [(one.state, one.position.sequence) for one in self.heard]

    def _subscribe(self, call: Call) -> object:
        self.subscriptions.append(call.body)
        self._calls.append(call)
        if self.first is not None:
            call.stream(self.first)
        return DEFERRED

    def _acknowledge(self, call: Call) -> Empty:
        self.heard.append(call.body)
        return Empty()

    def _report(self, call: Call) -> Reported:
        self.reports.append(call.body)
        if call.body.leaving:
            self.on_goodbye()
        return Reported(position=self.head)


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty home with a short path."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def teller(home: Path) -> AsyncIterator[Teller]:
    """A control plane that obeys the test, running."""
    environment = Environment.for_test("control_plane", home)
    one = Teller(environment.run_dir / "control_plane.sock")
    await one.start()
    yield one
    await one.stop()


class Instance:
    """A follower with what it was given."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.environment = Environment.for_test("orchestrator", home, **options)
        self.refusal: str | None = None
        self.activated: list[int] = []
        self.follower = PolicyFollower(
            self.environment,
            check=lambda _policies: self.refusal,
            activate=lambda active: self.activated.append(active.version),
            report=lambda: ReportParts(ready=True),
        )

    def stored(self) -> LastGood | None:
        """What lies on the disk."""
        return self.follower._file.read()[0]


@pytest.fixture
async def make(home: Path) -> AsyncIterator[Callable[..., Instance]]:
    """Instances in the home, closed at the end."""
    made: list[Instance] = []

    def one(**options: Any) -> Instance:
        made.append(Instance(home, **options))
        return made[-1]

    yield one
    for instance in made:
        await instance.follower.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so; bounded."""
    for _ in range(3_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


async def test_without_control_plane_and_file_it_is_version_0(
    make: Callable[..., Instance],
) -> None:
    """A start never fails: the empty set is put in force."""
    one = make()
    await one.follower.start()
    assert one.activated == [0]
    assert one.follower.position is None


async def test_the_way_of_a_commit(teller: Teller, make: Callable[..., Instance]) -> None:
    """Prepared: checked and on disk aside, not in force. Activated: in force, then last good."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    teller.send(item("prepare", 2))
    await until(lambda: teller.states()[1:] == [("valid", 2)])
    assert one.activated == [0, 1]
    stored = one.stored()
    assert stored is not None
    assert stored.position == at(1)
    teller.send(item("activate", 2, carries=False))
    await until(lambda: teller.states()[2:] == [("active", 2)])
    assert one.activated == [0, 1, 2]
    assert one.follower.current == policies(2)
    assert one.stored() == LastGood(position=at(2), policies=policies(2))


async def test_a_restart_with_a_dead_control_plane_serves_the_last_good(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """What was active before is active again, at once and at the same position."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    await one.follower.close()
    await teller.stop()
    again = make()
    await again.follower.start()
    assert again.activated == [1]
    assert again.follower.position == at(1)


async def test_a_prepared_set_is_not_in_force_after_a_crash(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """An instance that dies between valid and active comes back with the version before."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    teller.send(item("prepare", 2))
    await until(lambda: teller.states()[1:] == [("valid", 2)])
    await one.follower.close()
    again = make()
    await again.follower.start()
    assert again.activated[0] == 1


async def test_a_damaged_file_counts_as_none(teller: Teller, make: Callable[..., Instance]) -> None:
    """A torn last-good file costs nothing but the wait for the control plane."""
    one = make()
    one.follower._file.path.write_bytes(b"\x93\x01\xc4")
    await one.follower.start()
    assert one.activated == [0]
    await until(lambda: one.activated == [0, 1])
    await until(lambda: one.stored() is not None)


async def test_a_last_good_set_that_this_process_refuses_is_not_put_in_force(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """After a change of the code, say: version 0 until the control plane has something better."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    await one.follower.close()
    again = make()
    again.refusal = "cannot"
    await again.follower.start()
    assert again.activated == [0]
    await until(lambda: ("invalid", 1) in teller.states())
    assert teller.heard[-1].reason == "cannot"


async def test_a_refused_candidate_leaves_nothing(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """Invalid with the reason; the set before stays in force, and a later activation of the
    refused one without its set is refused as well."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    one.refusal = "no such column"
    teller.send(item("prepare", 2))
    teller.send(item("activate", 2, carries=False))
    await until(lambda: teller.states()[1:] == [("invalid", 2), ("invalid", 2)])
    assert teller.heard[1].reason == "no such column"
    assert one.activated == [0, 1]


async def test_an_abandoned_candidate_is_forgotten(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """After abandon the candidate cannot be activated by its name."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    teller.send(item("prepare", 2))
    teller.send(item("abandon", 2, carries=False))
    teller.send(item("activate", 2, carries=False))
    await until(lambda: teller.states()[1:] == [("valid", 2), ("invalid", 2)])
    assert one.activated == [0, 1]


async def test_it_never_goes_back(teller: Teller, make: Callable[..., Instance]) -> None:
    """An older activation is refused; the same one is acknowledged again without activating."""
    teller.first = item("activate", 5)
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 5)])
    teller.send(item("activate", 4))
    teller.send(item("activate", 5))
    await until(lambda: teller.states()[1:] == [("invalid", 4), ("active", 5)])
    assert one.activated == [0, 5]
    teller.send(item("activate", 4, epoch=2))
    await until(lambda: teller.states()[3:] == [("active", 4)])
    assert one.activated == [0, 5, 4]


async def test_a_disk_that_refuses_makes_the_candidate_invalid(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """`valid` is never said of a set that is not on the disk."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    shutil.rmtree(one.follower._file.path.parent)
    one.follower._file.path.parent.write_text("a file where the folder was")
    teller.send(item("prepare", 2))
    await until(lambda: teller.states()[1:] == [("invalid", 2)])
    assert "cannot be written" in str(teller.heard[1].reason)


async def test_what_is_in_force_but_not_on_disk_is_written_later(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """A disk that fails at the rename leaves the set in force, not acknowledged; when the set
    comes again it is made good without a second activation."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    folder = one.follower._file.path.parent
    teller.send(item("prepare", 2))
    await until(lambda: teller.states()[1:] == [("valid", 2)])
    shutil.rmtree(folder)
    teller.send(item("activate", 2, carries=False))
    await until(lambda: teller.states()[2:] == [("invalid", 2)])
    assert one.activated == [0, 1, 2]
    teller.send(item("activate", 2))
    await until(lambda: teller.states()[3:] == [("active", 2)])
    assert one.activated == [0, 1, 2]
    assert one.stored() == LastGood(position=at(2), policies=policies(2))


async def test_a_slow_disk_does_not_hold_up_the_loop(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """While a candidate is being written the loop turns and reports go out; `valid` waits."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    gate = threading.Event()
    one.follower._disk.submit(gate.wait)
    teller.send(item("prepare", 2))
    reports = len(teller.reports)
    one.follower.report_now()
    await until(lambda: len(teller.reports) > reports)
    assert teller.states()[1:] == []
    gate.set()
    await until(lambda: teller.states()[1:] == [("valid", 2)])


async def test_it_reports_and_subscribes_again_after_a_loss(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """A restarted control plane hears report and position without being asked."""
    one = make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)] and bool(teller.reports))
    assert teller.reports[0].instance == one.environment.instance
    assert teller.subscriptions[0].position is UNSET
    await teller.stop()
    reports = len(teller.reports)
    await teller.start()
    await until(lambda: len(teller.subscriptions) == 2 and len(teller.reports) > reports)
    assert teller.subscriptions[1].position == at(1)
    assert teller.reports[-1].position == at(1)


async def test_who_leaves_says_goodbye_before_the_subscription_ends(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """Once, as the last report; without a control plane there is nobody to tell."""
    one, other = make(), make()
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)] and bool(teller.reports))
    still_there: list[bool] = []

    def look() -> None:
        still_there.append(not teller._calls[-1].ended)

    teller.on_goodbye = look
    await one.follower.close()
    assert [report.leaving for report in teller.reports[-2:]] == [False, True]
    assert still_there == [True]
    await teller.stop()
    await other.follower.start()
    await other.follower.close()
    await teller.start()


async def test_one_that_lags_is_fenced_and_asks_again(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """Reports that show a newer version for half a second fence it, a shorter lag does not; the
    new subscription brings the version."""
    clock = ManualClock()
    one = make(clock=clock)
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    teller.head = at(3)
    teller.first = None
    one.follower.report_now()
    await until(lambda: one.follower._heartbeat._behind_since_s is not None)
    for _ in range(3):
        reports = len(teller.reports)
        one.follower.report_now()
        await until(lambda seen=reports: len(teller.reports) > seen)
    assert not one.follower.fenced
    clock.advance(0.5)
    one.follower.report_now()
    await until(lambda: one.follower.fenced)
    teller.first = item("activate", 3)
    one.follower.report_now()
    await until(lambda: ("active", 3) in teller.states())
    one.follower.report_now()
    await until(lambda: not one.follower.fenced)


async def test_a_standby_leaves_the_file_until_it_is_promoted(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """It follows in memory; promoted, it reports as active and keeps the set on its disk."""
    one = make(standby=True)
    await one.follower.start()
    await until(lambda: teller.states() == [("active", 1)] and bool(teller.reports))
    assert teller.reports[-1].role == "standby"
    teller.send(item("prepare", 2))
    teller.send(item("activate", 2, carries=False))
    await until(lambda: teller.states()[1:] == [("valid", 2), ("active", 2)])
    assert one.stored() is None
    teller.first = item("activate", 2)
    await one.follower.promoted()
    await until(lambda: teller.reports[-1].role == "active")
    await until(lambda: one.stored() == LastGood(position=at(2), policies=policies(2)))
    assert one.activated == [0, 1, 2]
    await one.follower.promoted()
    assert one.follower.statistics()["policy_version"] == 2


async def test_a_promotion_ends_when_what_is_in_force_elsewhere_is_in_force_here(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """Set 2 came while it was a standby that is told later, and its predecessor left no file."""
    standby = make(standby=True)
    await standby.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    teller.first = item("activate", 2)
    await standby.follower.promoted()
    assert standby.follower.current.version == 2
    assert standby.activated == [0, 1, 2]


async def test_a_promotion_does_not_wait_for_who_says_nothing(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """A control plane that is stopped: the standby serves by what it has."""
    standby = make(standby=True)
    await standby.follower.start()
    await until(lambda: teller.states() == [("active", 1)])
    teller.first = None
    async with asyncio.timeout(10.0):
        await standby.follower.promoted()
    assert standby.follower.current.version == 1


async def test_a_promoted_standby_serves_what_its_predecessor_had_in_force(
    teller: Teller, make: Callable[..., Instance]
) -> None:
    """Set 2 got to the active one alone, then it died and the control plane said nothing more."""
    active, standby = make(), make(standby=True)
    await active.follower.start()
    await until(lambda: ("active", 1) in teller.states())
    await standby.follower.start()
    await until(lambda: teller.states().count(("active", 1)) == 2)
    teller.first = item("activate", 2)
    active.follower._stream.restart()
    await until(lambda: ("active", 2) in teller.states())
    await active.follower.close()
    await teller.stop()
    assert standby.follower.current.version == 1
    await standby.follower.promoted()
    assert standby.follower.current.version == 2
    assert standby.activated == [1, 2]
