"""The circuit breaker of one model version. Pure: moments come in, decisions go out.

Invariant: while it is not closed, nothing but its probes reaches the version.

* closed → open: so many time-outs with no success between, or so large a share of failures among
  the latest requests, if those are enough to tell. The share is also that of the other tenants:
  one tenant whose requests fail takes nobody else's version away while theirs succeed.
* open → half-open: after `open_s` and up to a quarter more, by chance, so that versions that went
  together do not all come back in one moment.
* half-open: at most `probes` requests go; all of them answered: closed; one failed: open again.
  A probe that ended without a verdict (its caller left) gives its place to another.
"""

from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from contracts.policies import BreakerSpec
from services.orchestrator.config import breaker_window_s, breaker_windows_of_min

jitter_max = 0.25
"""At most this share of `open_s` is added to it."""


class State(StrEnum):
    """Whether requests reach the version."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class Ended:
    """Requests that ended in the same way at about the same time; `tenant` where it is known."""

    at_s: float
    requests: int
    is_failure: bool
    tenant: str


class Window:
    """The latest requests of a version and how they ended, exactly `requests_max` if there were so
    many, and none older than `breaker_window_s`. While none has failed only their number is kept:
    that is the usual case, and costs an addition a batch."""

    def __init__(self, requests_max: int) -> None:
        self.requests_max = requests_max
        self.requests = 0
        self.failures = 0
        self._good_s = 0.0
        self._entries: deque[Ended] = deque()

    def add(self, now_s: float, requests: int, *, is_failure: bool, tenant: str = "") -> None:
        """`requests` ended in the same way; the oldest leave that are too many or too old."""
        if not self.failures:
            if not is_failure:
                self.requests = min(self.requests_max, self.requests + requests)
                self._good_s = now_s
                return
            self._entries.clear()
            if self.requests:
                self._entries.append(Ended(self._good_s, self.requests, False, ""))
        self._entries.append(Ended(now_s, requests, is_failure, tenant))
        self.requests += requests
        if is_failure:
            self.failures += requests
        self._trim(now_s)
        if not self.failures:
            self._good_s = now_s

    def _trim(self, now_s: float) -> None:
        entries = self._entries
        while entries:
            oldest = entries[0]
            spare = oldest.requests
            if now_s - oldest.at_s <= breaker_window_s:
                spare = min(spare, self.requests - self.requests_max)
            if spare <= 0:
                return
            oldest.requests -= spare
            self.requests -= spare
            if oldest.is_failure:
                self.failures -= spare
            if not oldest.requests:
                entries.popleft()

    def others(self) -> tuple[int, int]:
        """Requests and failures of all known tenants but the one that failed most."""
        failures: Counter[str] = Counter()
        requests: Counter[str] = Counter()
        for ended in self._entries:
            if ended.tenant:
                requests[ended.tenant] += ended.requests
                if ended.is_failure:
                    failures[ended.tenant] += ended.requests
        if not failures:
            return 0, 0
        worst = failures.most_common(1)[0][0]
        return requests.total() - requests[worst], failures.total() - failures[worst]


class Breaker:
    """See the module. `reason` says why it opened last, `opened` counts how often."""

    def __init__(self, spec: BreakerSpec, random: Random) -> None:
        self.state = State.CLOSED
        self.reason = ""
        self.opened = 0
        self.reopens_s = 0.0
        self.window = Window(spec.requests_min * breaker_windows_of_min)
        self._random = random
        self._spec = spec
        self._timeouts = 0
        self._probes_out = 0
        self._probes_answered = 0

    def apply(self, spec: BreakerSpec) -> None:
        """New thresholds from now on; what was seen stays."""
        self._spec = spec
        self.window.requests_max = spec.requests_min * breaker_windows_of_min

    @property
    def is_alert(self) -> bool:
        """Failures are among the latest requests: it matters whose succeed."""
        return self.window.failures > 0

    # Requests that go.

    def admits(self, now_s: float) -> bool:
        """Whether a request may reach the version; one that does is a probe unless closed."""
        if self.state is State.CLOSED:
            return True
        if self.state is State.OPEN:
            if now_s < self.reopens_s:
                return False
            self.state = State.HALF_OPEN
            self._probes_out = self._probes_answered = 0
        return self._probes_out + self._probes_answered < self._spec.probes

    def restore(self, now_s: float, reopens_s: float, reason: str) -> None:
        """Open, as another process left it; not for longer than one opens for."""
        latest_s = now_s + self._spec.open_s * (1 + jitter_max)
        self.state = State.OPEN
        self.reason = reason
        self.reopens_s = min(reopens_s, latest_s)
        self._forget()

    def take_probe(self) -> None:
        """The request that `admits` let through goes as a probe."""
        assert self.state is State.HALF_OPEN, "only a half-open breaker probes"
        self._probes_out += 1

    def retry_after_s(self, now_s: float) -> float:
        """When to ask again: when it reopens, or when the probes may have come back."""
        return max(self.reopens_s - now_s, 0.0) if self.state is State.OPEN else self._spec.open_s

    # Verdicts.

    def answered(self, now_s: float, requests: int = 1, tenant: str = "") -> None:
        """Requests that were no probes were answered."""
        if self.state is State.CLOSED and requests:
            self._timeouts = 0
            self.window.add(now_s, requests, is_failure=False, tenant=tenant)

    def failed(self, now_s: float, tenant: str, *, is_timeout: bool) -> None:
        """A request that was no probe failed, and the version is to blame."""
        if self.state is not State.CLOSED:
            return
        spec, window = self._spec, self.window
        window.add(now_s, 1, is_failure=True, tenant=tenant)
        if is_timeout:
            self._timeouts += 1
        if self._timeouts >= spec.consecutive_timeouts:
            self._open(now_s, f"{self._timeouts} time-outs in a row")
        elif self._is_failing():
            self._open(now_s, f"{window.failures} of the latest {window.requests} requests failed")

    def probe_answered(self, now_s: float) -> None:
        """A probe was answered."""
        if self.state is not State.HALF_OPEN:
            return
        self._probes_out -= 1
        self._probes_answered += 1
        if self._probes_answered >= self._spec.probes:
            self.state = State.CLOSED
            self._forget()

    def probe_failed(self, now_s: float) -> None:
        """A probe failed, and the version is to blame."""
        if self.state is State.HALF_OPEN:
            self._open(now_s, "a probe failed")

    def probe_unjudged(self) -> None:
        """A probe ended for a reason that says nothing of the version."""
        if self.state is State.HALF_OPEN and self._probes_out:
            self._probes_out -= 1

    def _is_failing(self) -> bool:
        spec, window = self._spec, self.window
        if (
            window.requests < spec.requests_min
            or window.failures < spec.error_rate * window.requests
        ):
            return False
        requests, failures = window.others()
        return not requests or failures >= spec.error_rate * requests

    def _open(self, now_s: float, reason: str) -> None:
        self.state = State.OPEN
        self.reason = reason
        self.opened += 1
        self.reopens_s = now_s + self._spec.open_s * (1 + jitter_max * self._random.random())
        self._forget()

    def _forget(self) -> None:
        self._timeouts = 0
        self.window = Window(self.window.requests_max)
