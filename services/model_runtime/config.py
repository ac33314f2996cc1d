"""Limits of the model runtime alone, and what it sets in torch."""

credits_batches = 2
"""Batches taken at once: one computing, one waiting, so that the compute thread never idles for a
round trip."""
queue_batches_max = 8
"""Batches that wait or compute; one more is refused. Above `credits_batches`, because during the
orchestrator's replacement the old and the new one both send."""
linger_s = 10.0
"""A version that no deployment names any more is still served this long: a request that was
routed before may arrive after. Longer than the default time-out of `infer`."""
unload_spare_s = 10.0
"""A version that was loaded or used this lately is not unloaded for memory: a promotion routes to
it when it is ready everywhere."""
start_wait_s = 5.0
"""How long a start waits for the models of the last good policies."""
inline_s = 100e-6
"""A forward cheaper than this runs on the loop: handing it to the compute thread and back costs
as much."""
buffer_rows = 1_024
"""Rows of the preallocated input buffers; a larger batch gets memory of its own."""
buffer_headroom = 1.2
"""M7: predicted private memory is taken a fifth larger than its arithmetic says."""
lane_weights_bytes_max = 8 * 1024 * 1024
"""Reading these weights once takes about a millisecond; beside that a lane's few microseconds are
nothing, and its buffers (one a layer) would be private memory of every replica."""
lane_rows_max = 64
"""Rows of the largest batch that is computed between fixed memory (`backends.base.Lane`): twice
the batch that the orchestrator fills for a small model. Each row count keeps its views."""
warm_rows = 32
"""The larger of the two batches with which a model is warmed and its cost measured."""
warm_tokens = 64
"""Tokens of a row, of a token model."""
warm_runs_max = 20
warm_seconds_max = 0.05
"""Warming ends after this many runs or seconds per batch size, whichever comes first."""
weights_share_max = 0.8
"""P4: weights over this share of the available memory are refused before they are mapped."""
side_file_bytes_max = 64 * 1024 * 1024
"""Of a pack's file that holds no tensor: it is read into memory whole."""
switch_interval_s = 0.0005
"""How long the compute thread may hold the interpreter while the loop wants it; Python's default
of 5 ms would delay every frame that arrives during pre- or postprocessing."""
young_objects_max = 20_000
"""New objects before the garbage collector looks at them: batches leave no cycles."""
kept_max = 256
"""Batches that are counted together; that takes less than a quarter of a millisecond."""
watch_tick_s = 0.05
"""How often the loop looks whether the compute thread gets on."""
hang_share = 0.8
"""A forward may take this share of the time-out of `execute`: later nobody waits for it, and what
waits behind it has the rest to be served by the successor."""
forward_p99_factor = 10.0
forward_s_min = 1.0
"""Where the contract promises a p99, a forward may take so many times that, at least a second."""
prime_s_max = 60.0
"""The first row through a model, whatever it sets up."""
leave_s = 0.02
"""A runtime that leaves over a hung forward gives its last answers this long to leave before."""
isolated_rows_max = 4
"""Bad rows that are looked for by halving a batch; with more it is cheaper to try each alone."""
alone_rows_max = 64
"""Rows that are then tried alone: with the halving this bounds what a failed batch may cost, so
that a model that fails for every row does not compute for ever."""
poisoned_batches = 3
"""After so many batches in a row beyond the halving without a good row, only one bad row is looked
for and none is tried alone, until a batch has a good one."""
shown_numbers_max = 8
"""Of an invalid output, in its error."""
failed_requests_logged_max = 32
"""Requests of one failed batch that get a log record of their own."""

assert queue_batches_max > credits_batches, "granted credits are never refused"
assert hang_share < 1, "a hung forward is noticed before its caller gives up"
