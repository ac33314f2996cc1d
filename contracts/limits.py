"""Limits that two processes share. A limit of one process alone lives in that service's config.

Relations between limits are asserted here, with the reason beside them.
"""

PROTOCOL_VERSION = 1
"""Grows by one when a field is born that an older peer must not receive."""

frame_bytes_max = 16 * 1024 * 1024
"""A longer frame: a request is told INVALID_REQUEST; the connection is closed and counted."""
frame_objects_max = 524_288
"""MessagePack objects (keys and values alike) in a large frame: 4,096 rows of 64 columns. In C they
pass in 4 ms; 16 MiB of one-byte objects would take 80. More: the connection is closed."""
frame_str_bytes_max = 1024 * 1024
"""Of one `str`, which an error message may repeat; what is longer travels as `bin`. Longer: the
connection is closed."""
connections_max_default = 12_000
"""Per listening socket; over it the first request gets OVERLOADED, then the connection closes."""
in_flight_per_connection_max = 1_024
"""Requests of one connection not yet answered; one more gets OVERLOADED."""
write_buffer_bytes_max = 32 * 1024 * 1024
"""Bytes that a slow reader may leave unsent before its connection is aborted."""
stream_pause_bytes = 256 * 1024
"""Unsent bytes of one connection at which its streams pause."""
list_items_max = 65_536
"""Numbers in a list; longer ones travel as `bin`."""
rows_per_request_max = 4_096
text_items_max = 1_024
text_characters_max = 8_192
token_ids_max = list_items_max
"""Ids of one row; how many a model takes is in its contract, how many a batch holds in its
policy."""
tensors_max = 64
tensor_dimensions_max = 8
parameters_max = 64
stop_sequences_max = 8
new_tokens_max = 2_048
message_characters_max = 8_192
messages_max = 256
policies_per_commit_max = 1_024
policy_set_max = 4_096
receipts_per_call_max = 2_048
page_items_max = 1_000
batch_items_max = 1_024
"""Requests in one execute frame."""
feature_items_max = 256
"""Requests in one features micro-batch."""
listen_backlog = 4_096
heartbeat_s = 0.5
stale_after_s = 2.0
"""An instance whose last report is older is not required for a push, and shown as stale."""
prepare_timeout_s = 0.25
restarts_max = 5
"""Exits of a process within `restart_period_s`; one more, and it is degraded: tried again slowly
while the others go on."""
restart_period_s = 30.0
socket_path_bytes_max = 107
"""sun_path is 108 bytes with its terminating zero (unix(7))."""

assert write_buffer_bytes_max >= 2 * frame_bytes_max, (
    "one whole answer fits beside a partly sent one"
)
assert stream_pause_bytes < write_buffer_bytes_max, "a stream pauses before its reader is aborted"
assert stale_after_s >= 4 * heartbeat_s, "three lost heartbeats are not yet a stale instance"
assert prepare_timeout_s < stale_after_s, "a silent instance is named before it turns stale"
