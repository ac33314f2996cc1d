"""`call` and `infer`: one request to the mesh, JSON in and out."""

import struct
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mortise.cli.arguments import read_json, read_text
from mortise.cli.failures import UsageError
from mortise.cli.options import DEFAULTS, Options, Timeout
from mortise.cli.output import plain, print_json, print_line, print_table, progress
from mortise.generated import METHODS
from mortise.result import Record, Result
from mortise.tensors import encode_inputs

DIGEST_DIGITS = 12
"""Of a digest shown to people; enough to tell two apart."""


def call(
    method: str,
    body: str = "{}",
    /,
    *,
    socket: Path | None = None,
    service: str | None = None,
    timeout: Timeout = None,
    options: Options = DEFAULTS,
) -> None:
    """Call a method of a service and print its answer as JSON.

    Args:
        method: name of the method, as `infer` or `status`
        body: JSON map, `@file` or `-` (standard input)
        socket: the socket to call; default: that of the first service that has the method
        service: orchestrator, control_plane, data_fabric or model_runtime
    """
    value = read_json(body, "the body")
    if not isinstance(value, dict):
        raise UsageError(f"the body must be a JSON map, not {type(value).__name__}")
    chosen = service or service_of(method)
    if chosen not in METHODS:
        raise UsageError(f"no service {chosen!r}; there are {', '.join(METHODS)}")
    is_streaming = method in METHODS[chosen] and METHODS[chosen][method].streaming
    with options.client(chosen, socket) as client:
        answer = client.call(
            method, value, timeout_s=timeout, on_item=_show_item if is_streaming else None
        )
    print_json(answer)


def service_of(method: str) -> str:
    """The first service that has a method; the orchestrator says of an unknown one that it is."""
    return next((name for name, rows in METHODS.items() if method in rows), "orchestrator")


def infer(
    model: str,
    /,
    *,
    rows: str | None = None,
    inputs: str | None = None,
    text: str | None = None,
    input_ids: str | None = None,
    version: str | None = None,
    tenant: str | None = None,
    risk: Annotated[int | None, Parameter(help="1 (highest) … 3")] = None,
    entity: str | None = None,
    stream: Annotated[bool, Parameter(negative="")] = False,
    timeout: Timeout = None,
    socket: Path | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Ask a model; exactly one of --rows, --inputs, --text and --input-ids.

    Args:
        rows: raw columns of the model's view: JSON list of maps, `@file` or `-`
        inputs: JSON map of name → nested lists (FP32), or list of {name, datatype, shape, data}
        text: a text, or a JSON list of texts
        input_ids: JSON list of token ids, or one such list for each row, `@file` or `-`
        version: a version or alias of the model
    """
    if sum(value is not None for value in (rows, inputs, text, input_ids)) != 1:
        raise UsageError("exactly one of --rows, --inputs, --text and --input-ids is needed")
    body: dict[str, Any] = {
        "rows": None if rows is None else read_rows(rows),
        "inputs": None if inputs is None else read_inputs(inputs),
        "text": None if text is None else read_text(text, "--text"),
        "input_ids": None if input_ids is None else read_ids(input_ids),
        "model_version": version,
        "tenant_id": tenant,
        "risk_level": risk,
        "entity": entity,
    }
    with options.client(socket=socket) as client:
        if stream:
            with client.stream(model, timeout_s=timeout, **body) as steps:
                result = steps.wait(_show_item)
        else:
            result = client.infer(model, timeout_s=timeout, **body)
    if options.json:
        print_json(result)
    else:
        show_result(result)


def read_rows(argument: str) -> list[Any]:
    """What `--rows` gives: a list of maps. Raises UsageError."""
    rows = read_json(argument, "--rows")
    if isinstance(rows, dict):
        return [rows]
    if not isinstance(rows, list):
        raise UsageError("--rows must be a JSON list of maps")
    return rows


def read_inputs(argument: str) -> list[dict[str, Any]]:
    """What `--inputs` gives, as tensors. Raises UsageError."""
    inputs = read_json(argument, "--inputs")
    try:
        return encode_inputs(inputs)
    except (ValueError, TypeError, KeyError, OverflowError, struct.error) as error:
        raise UsageError(f"--inputs: {error}") from error


def read_ids(argument: str) -> list[list[int]]:
    """What `--input-ids` gives: rows of ids. Raises UsageError."""
    ids = read_json(argument, "--input-ids")
    rows = ids if isinstance(ids, list) and ids and isinstance(ids[0], list) else [ids]
    if not all(isinstance(row, list) and all(type(one) is int for one in row) for row in rows):
        raise UsageError("--input-ids must be a JSON list of ids, or a list of such lists")
    return rows


def show_result(result: Result) -> None:
    """A prediction for people: what was said, how sure, how long it took, what it was made of."""
    if result.predictions is not None:
        _show_predictions(result)
    elif result.text is not None:
        for line in result.text.splitlines():
            print_line(line)
    else:
        for tensor in plain(result["outputs"]):
            print_line(f"{tensor['name']} {tensor['datatype']} {tensor['shape']} {tensor['data']}")
    for row, item in enumerate(result.items or []):
        if item.status != "ok":
            print_line(f"row {row}: {item.status.name}: {item.status.message}")
    print_table(("", ""), _account(result))
    print_line("digests are shortened; --json shows them whole")


def _show_predictions(result: Result) -> None:
    """One line a row that has a prediction, under its number in the request."""
    answered = (row for row, item in enumerate(result.items or []) if item.status == "ok")
    rows = answered if result.items is not None else range(len(result.predictions))
    labels = list(result.predictions[0].probabilities) if result.predictions else []
    columns = ("row", "label", "confidence", *(f"p({label})" for label in labels), "action")
    print_table(
        columns,
        [
            (row, one.label, one.confidence_score, *one.probabilities.values(), one.get("action"))
            for row, one in zip(rows, result.predictions, strict=True)
        ],
    )


def _account(result: Result) -> list[tuple[str, str]]:
    timing = result.timing_us.to_builtin()
    stages = [f"{name} {value / 1_000:.2f}" for name, value in timing.items() if name != "hops"]
    notes = [*(["degraded"] if result.degraded else []), *result.marks]
    lineage: Record = result.lineage
    return [
        ("model", f"{result.model_name} version {result.model_version} ({result.variant})"),
        ("policy version", str(result.policy_version)),
        *([("marks", ", ".join(notes))] if notes else []),
        *([] if result.freshness_s is None else [("freshness", f"{result.freshness_s:.0f} s")]),
        ("time ms", ", ".join(stages)),
        *((name, _short(str(digest))) for name, digest in lineage.items()),
        ("trace", result.trace_id),
    ]


def _short(digest: str) -> str:
    """The first 12 hexadecimal digits of a digest; other text as it is."""
    kind, is_digest, digits = digest.partition(":")
    return f"{kind}:{digits[:DIGEST_DIGITS]}" if is_digest and kind == "sha256" else digest


def _show_item(item: Record) -> None:
    progress(str(plain(item)))
