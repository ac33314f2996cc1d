"""How long before a runtime is done its next batch should be sent. Pure: reads no clock.

A batch that is sent early waits at the runtime, where nobody who arrives later can pass it; one
that is sent late lets the runtime pause. How late a timer fires, the loop wakes and a frame travels
depends on the machine and on what else it does, so the lead is learnt: longer after each batch that
came late, a little shorter after each that did not, such that one in `1 / lead_late_share` is late.

Source of the step: Robbins and Monro's stochastic approximation of a quantile (1951).
"""

from services.orchestrator.config import (
    lead_late_share,
    lead_s_first,
    lead_s_max,
    lead_s_min,
    lead_step_s,
    lead_wait_s_min,
)


class Lead:
    """The lead of one model version, in seconds."""

    def __init__(self) -> None:
        self.seconds = lead_s_first

    def met(self, wait_s: float) -> None:
        """A batch that had been kept back waited so long at the runtime before its forward."""
        if wait_s < lead_wait_s_min:
            self.seconds += lead_step_s * (1.0 - lead_late_share)
        else:
            self.seconds -= lead_step_s * lead_late_share
        self.seconds = min(lead_s_max, max(lead_s_min, self.seconds))
