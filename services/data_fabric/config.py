"""Limits and pinned names of the data fabric alone; what processes share is in contracts/limits."""

from importlib.metadata import version

from contracts.limits import rows_per_request_max

ENGINE = f"duckdb {version('duckdb')}"
PARSER = f"sqlglot {version('sqlglot')}"

view_bytes_max = 262_144
"""A longer view text is refused before it is parsed."""
features_max = 512
"""Features of one view, and columns of one request."""
views_max = 64
"""View versions held at once; one more is refused with a reason."""
stored_views_max = 4
"""View states whose indexes are kept on disk, some 50 MB each for the flights."""
source_files_max = 10_000
"""Files of one source."""
source_rows_max = 100_000_000
"""Rows of one source; the engine's memory limit usually comes first."""
batch_rows = 8_192
"""Rows of a batch read from Parquet; 8,192 kept the reader at 20 MB on a 274 MB file."""
offline_rows = 65_536
"""Request rows that the engine computes at once; the whole year at once took more than 1 GiB."""
read_buffer_bytes = 1 << 20
hash_chunk_bytes = 1 << 20
racy_s = 2.0
"""A file changed less than this before its stat may change again under the same time stamp, so
its content is hashed once more after reading. Two seconds covers file systems with that grain."""
engine_memory_mib = 1_024
engine_timeout_s = 120.0
"""A load or an offline run of the engine that takes longer is interrupted."""
request_timeout_s = 5.0
"""A micro-batch on the engine that takes longer is interrupted."""
engine_batch_requests = 256
"""Requests that one run of the engine takes together."""
engine_waiting_rows_max = 16_384
"""Rows that wait for the engine; one request more gets OVERLOADED."""
inline_rows_max = 64
"""Rows of a call that are computed at once on the loop, 1.5 ms where nothing else runs; a longer
call is computed in slices, so that the loop turns in between."""
slow_calls_max = 64
"""Calls in slices or on the engine at a time; one more gets OVERLOADED."""
start_wait_s = 60.0
"""A start waits this long for its views, then serves what it has."""
source_poll_s = 5.0
"""How often files of sources and views are looked at for changes."""
switch_interval_s = 0.001
"""A loading thread gives the interpreter back at least this often, so that the loop is not held
up for the default of 5 ms."""
quarantine_file_bytes = 8 * 1024 * 1024
quarantine_row_bytes = 16 * 1024
"""A longer refused row is cut."""
quarantine_waiting_max = 1_000
"""Refused rows that wait to be written; more are counted as dropped."""

assert batch_rows <= source_rows_max, "a batch fits into a source"
assert request_timeout_s <= engine_timeout_s, "a request waits no longer than a load"
assert engine_waiting_rows_max >= 2 * rows_per_request_max, "the longest request can wait"
assert inline_rows_max <= rows_per_request_max, "a slice is part of a request"
