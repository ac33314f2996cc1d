"""Limits and periods that the orchestrator alone keeps; those that policies may change are in
`contracts/policies.py`."""

from typing import Final

from contracts.limits import (
    batch_items_max,
    feature_items_max,
    frame_bytes_max,
    receipts_per_call_max,
)

in_flight_max: Final = 8_192
"""Requests admitted and not yet ended."""
in_flight_bytes_max: Final = 512 * 1024 * 1024
"""Bytes of their tensors and rows."""
batch_bytes_max = 8 * 1024 * 1024
"""Input bytes of one `execute` frame; a single row may be larger."""
features_bytes_max = 8 * 1024 * 1024
"""Row bytes of one `features_batch` frame; a single request may be larger."""
answer_overhead_bytes = 4 * 1024 * 1024
"""What an answer holds beside its tensors and predictions: lineage, hops, the statuses of failed
rows (4,096 of 1 KiB)."""
flows_idle_max = 1_024
"""Tenants of a model version whose past share is remembered while they have nothing waiting."""
retries_max = 1
"""A part of a request whose runtime or fabric died is sent once more, within the retry budget:"""
retry_share_max = 0.2
"""Parts sent again ÷ parts sent, over the last `retry_memory_s`; a failing runtime costs at most
this much more work."""
retry_parts_min = 100
"""Parts that may be sent again within that time however few were sent: what two full batches and
a half lose when one runtime dies. 10 a second."""
retry_memory_s = 10.0

cost_batches_kept = 50
"""A batch weighs 1/e after so many later ones: half a second of a busy runtime."""
cost_batches_min = 8
"""Before so many batches nothing is decided by their cost."""
cost_outlier_spreads = 4.0
"""How many usual distances from the expected cost a single batch can move the fit."""
lead_s_first = 0.003
"""How long before a runtime is done it gets its next batch, before anything was learnt of it,"""
lead_s_min = 0.0005
lead_s_max = 0.1
lead_late_share = 0.02
"""and so many of the batches that were kept back may come after the runtime was done:"""
lead_step_s = 0.001
"""each of them lengthens the lead by about this."""
lead_wait_s_min = 100e-6
"""A batch that waited less at the runtime came late."""
quota_keep_s = 1.0
"""How often what was used of the daily quotas is written down."""
shares_memory_s = 0.25
"""Over which time the classes' shares of the runtimes are measured, for predicting waits."""

deadline_grain_s = 0.005
"""Requests end at most this long after their deadline, and what the timer and the loop are late."""
ready_grace_s = 5.0
"""A version that was ready this recently is waited for (its runtime restarts) before requests for
it are refused; equal to the time-out of `infer`, which ends those that wait in vain."""
models_poll_s = 1.0
"""How often a runtime is asked what it holds while everything routed is ready."""
models_poll_s_min = 0.05
"""The same while something is missing."""
introduction_s_max = 60.0
"""How long one question for a runtime's instance id may wait for a process behind the socket."""
feature_retry_s = 0.025
"""Pause before a fabric that has not loaded the view yet is asked again."""
credit_retry_s = 0.005
"""Pause before a runtime that answered OVERLOADED gets the next batch."""

breaker_window_s = 60.0
"""Requests that ended longer ago say nothing of a version any more."""
breaker_windows_of_min = 5
"""The latest so many times `requests_min` requests are judged: enough to be sure, few enough that a
version that begins to fail at any load is out after half of them."""
breaker_retry_ms_min = 50
"""Hint while a half-open breaker's probes are out."""
slow_factor = 4.0
"""A deadline that passes while a batch is out counts against the version only when the batch took
so many times the usual, or what the SLA promises; before that the deadline was too short."""
slow_s_min = 0.020
"""Never sooner than this, which is how exactly deadlines are kept."""
early_cancel_s = 0.010
"""A cancel this close to its request's deadline is the client's own timer: a time-out."""
usual_share = 0.05
"""Weight of the newest batch in the usual time of a version's batches."""

shadow_waiting_max = 128
"""Copies for shadow versions that wait until a replica is idle; the oldest is dropped first."""
shadow_bytes_max = 64 * 1024
"""Input of a request that is copied; a larger one is not."""
shadow_rows_max = 32
"""Rows of one batch of copies: what a real request may have to wait behind."""
shadow_s_max = 1.0
"""A copy that has not gone by then is dropped; one that is out is given up."""
shadow_tick_s = 0.010
"""How often waiting copies look for an idle replica."""
shadow_share_alone = 0.005
"""Of a replica's time, when no other one stands idle: then at most one request in two hundred
meets a shadow in progress, which a p99 does not show."""
shadow_share_beside = 0.25
"""The same while another replica stands idle for what comes."""
shadow_credit_s_max = 0.050
"""Compute time that may be saved up."""
shadow_values_max = 1_024
"""Numbers of one batch of copies that are compared: about 0.1 ms of the loop."""

segment_bytes = 16 * 1024 * 1024
"""One file of the spool."""
spool_bytes_max = 512 * 1024 * 1024
"""All files of the spool; with these full nothing is served until the control plane takes some."""
ship_interval_s = 0.1
"""How long receipts may gather before they are shipped."""
ship_receipts_max = 512
"""In one call: making it holds up the loop for about a quarter of a millisecond."""
ship_bytes_max = 192 * 1024
"""What is in them. With the last record, which begins within it, a call stays below the 256 KiB
from which frames are walked in Python (`shared/wire/framing.py`)."""
ship_backoff_s_max = 2.0
control_plane_probe_s = 1.0
"""Between two pings while there is nothing to ship. A control plane that stands still and does
not hang up shows in health after this long, or after the time-out of the call that it has got."""

young_objects_max = 20_000
"""New objects before the garbage collector looks at them. Requests leave no cycles: with Python's
700 it looks at those in flight again and again (3 % of the time at 64 clients)."""
access_sample_of = 1_000
"""One success in so many is logged; every failure is, but of requests refused for the load"""
load_refusals_logged_per_s = 20
"""so many a second, each with the number of those that were not."""

assert 2 * deadline_grain_s <= 0.020, "requests end within 20 ms of their deadline"
assert batch_bytes_max + answer_overhead_bytes < frame_bytes_max, "a batch fits into a frame"
assert features_bytes_max < frame_bytes_max, "a micro-batch fits into a frame"
assert feature_items_max <= batch_items_max, "one micro-batch's requests fit into one batch's"
assert spool_bytes_max >= 2 * segment_bytes, "one segment is written while the other is prepared"
assert ship_receipts_max <= receipts_per_call_max, "the control plane takes as many"
assert ship_bytes_max < frame_bytes_max, "a shipment fits into a frame"
