"""Limits and pinned names of the data fabric alone; what processes share is in contracts/limits."""

import duckdb
import sqlglot

ENGINE = f"duckdb {duckdb.__version__}"
PARSER = f"sqlglot {sqlglot.__version__}"

view_bytes_max = 262_144
"""A longer view text is refused before it is parsed."""
features_max = 512
"""Features of one view, and columns of one request."""
views_max = 64
"""View versions held at once; one more is refused with a reason."""
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

assert batch_rows <= source_rows_max, "a batch fits into a source"
assert request_timeout_s <= engine_timeout_s, "a request waits no longer than a load"
