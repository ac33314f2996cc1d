"""`bench`: load-test a model of the home; `bench soak`: watch the mesh for leaks under load.

The load comes from a job, a process of its own, so that this one costs it nothing.
"""

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgpack
import msgspec
from cyclopts import App, Parameter, validators

from contracts.pack import Manifest, ModelContract
from contracts.policies import SlaSpec
from contracts.types import UNSET
from mortise.cli.arguments import read_text
from mortise.cli.bench_bodies import row_bodies, tensor_bodies, token_bodies
from mortise.cli.calls import read_ids, read_inputs, read_rows
from mortise.cli.failures import CommandError, UsageError
from mortise.cli.jobs import run_job
from mortise.cli.mesh import home_errors
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import print_json, print_line, print_table
from mortise.result import Record
from mortise.retry import MeshDown

app = App(name="bench", help="Load-test a model of your own; soak: look for leaks.")

RATE_PER_S_MAX, SECONDS_MAX, MINUTES_MAX = 200_000.0, 3_600.0, 24 * 60.0
_COLUMNS = (
    "offered/s", "answered/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms", "failed",
    "generator late ms", "its core", "",
)  # fmt: skip


def _at_most(limit: float) -> Any:
    def check(_kind: Any, value: float | None) -> None:
        if value is not None and not 0 < value <= limit:
            raise ValueError(f"{value:g} is not more than 0 and at most {limit:g}")

    return check


Model = Annotated[str, Parameter(help="Name of the model.")]
Rate = Annotated[
    float | None,
    Parameter(validator=_at_most(RATE_PER_S_MAX), help="Requests a second, open loop."),
]
Seconds = Annotated[float, Parameter(validator=_at_most(SECONDS_MAX), help="Of each stretch.")]
Rows = Annotated[str | None, Parameter(help="A row, or a list of them for each request, @file.")]
Inputs = Annotated[str | None, Parameter(help="Tensors of each request, as `infer` takes them.")]
Text = Annotated[str | None, Parameter(help="A text, or a JSON list of texts sent in turn.")]
InputIds = Annotated[
    str | None, Parameter(help="Token ids of each request, as `infer` takes them.")
]
Tenant = Annotated[str | None, Parameter(help="To whom the requests are counted.")]
Risk = Annotated[
    int | None,
    Parameter(validator=validators.Number(gte=1, lte=3), help="Risk class, 1 (highest) … 3."),
]


@app.default
def bench(
    *,
    model: Model,
    rate: Rate = None,
    search: Annotated[bool, Parameter(negative="", help="Find the saturation too.")] = False,
    seconds: Seconds = 10.0,
    version: str | None = None,
    rows: Rows = None,
    inputs: Inputs = None,
    text: Text = None,
    input_ids: InputIds = None,
    tenant: Tenant = None,
    risk: Risk = None,
    options: Options = DEFAULTS,
) -> int:
    """Offer a model a rate and judge it by its contract; without --rate find what it sustains.

    Open loop: a request leaves when it is due, and its latency counts from then. Without --rows,
    --inputs, --text or --input-ids the requests are made from the contract of the model or its
    view. Exit code 1 when the promised p99 or availability is missed, or when the generator was
    the limit. The requests are real: receipts are written and counted to the tenant.
    """
    contract = contract_of(model, version, options)
    bodies = [
        {"model_name": model, **chosen}
        | ({} if version is None else {"model_version": version})
        | ({} if tenant is None else {"tenant_id": tenant})
        | ({} if risk is None else {"risk_level": risk})
        for chosen in _bodies(contract, Given(rows, inputs, text, input_ids), options)
    ]
    promise = promise_of(model, contract, options)
    words = ["--p99-ms", f"{promise.p99_ms:g}", "--availability", f"{promise.availability:g}"]
    words += [] if rate is None else ["--rate", f"{rate:g}"]
    words += ["--search"] if search else []
    found = run_with_bodies("bench", bodies, options, *words, "--seconds", f"{seconds:g}")
    found.pop("step", None)
    if options.json:
        print_json({"model": model, **found})
    else:
        _show(model, found)
    return 0 if found["outcome"] == "met" else 1


@app.command
def soak(
    *,
    minutes: Annotated[float, Parameter(validator=_at_most(MINUTES_MAX))] = 20.0,
    model: Annotated[str | None, Parameter(help="Default: the first that is ready.")] = None,
    rate: Annotated[float, Parameter(validator=_at_most(RATE_PER_S_MAX))] = 200.0,
    rows: Rows = None,
    inputs: Inputs = None,
    text: Text = None,
    input_ids: InputIds = None,
    options: Options = DEFAULTS,
) -> int:
    """Offer a steady rate and say whether any process grows: memory, descriptors, threads, p99.

    Each slope comes with its 95 % interval. Exit code 1 when one is above its limit for certain,
    that is when the whole interval is, or when a request failed beyond the promised availability.
    """
    chosen = model or _first_ready(options)
    contract = contract_of(chosen, None, options)
    bodies = [
        {"model_name": chosen, **body}
        for body in _bodies(contract, Given(rows, inputs, text, input_ids), options)
    ]
    promise = promise_of(chosen, contract, options)
    words = ["--supervisor", str(_supervisor_pid(options)), "--rate", f"{rate:g}"]
    words += ["--seconds", f"{minutes * 60:g}", "--availability", f"{promise.availability:g}"]
    found = run_with_bodies("soak", bodies, options, *words)
    found.pop("step", None)
    if options.json:
        print_json({"model": chosen, **found})
    else:
        _show_soak(chosen, found)
    return 0 if found["is_flat"] else 1


def contract_of(model: str, version: str | None, options: Options) -> ModelContract:
    """The contract of a version, else of the newest that is ready, from its pack in the home."""
    with options.client() as client:
        rows = [row for row in client.call("models").models if row.name == model]
    if not rows:
        raise CommandError("MODEL_UNKNOWN", f"no model {model!r} here", "mortise models")
    named = [row for row in rows if version is not None and version in (row.version, *row.aliases)]
    ready = named if version is not None else [row for row in rows if row.state == "ready"]
    if not ready:
        wanted = "ready version" if version is None else f"version {version!r}"
        raise CommandError("MODEL_NOT_READY", f"{model} has no {wanted}", "mortise models")
    newest = max(ready, key=lambda row: int(row.version))
    path = options.path / "models" / str(newest.digest).removeprefix("sha256:") / "manifest.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest).contract
    except (OSError, msgspec.DecodeError) as error:
        raise CommandError("PACK_INVALID", f"{path.parent.name[:12]}: {error}") from error


def promise_of(model: str, contract: ModelContract, options: Options) -> SlaSpec:
    """p99 and availability promised: the model's `sla` policy, else the one for `*`, else the
    defaults; a p99 in the model's own contract goes before them. Without a control plane the
    policies cannot be read, and the defaults stand."""
    specs: dict[str, Record] = {}
    with contextlib.suppress(MeshDown), options.client("control_plane") as client:
        answer = client.call("policies")
        specs = {policy.name: policy.spec for policy in answer.policies if policy.kind == "sla"}
    given = specs.get(model) or specs.get("*")
    kept = {} if given is None else given.to_builtin()
    wanted = {name: kept[name] for name in ("p99_ms", "availability") if name in kept}
    if contract.p99_ms is not UNSET and model not in specs:
        wanted["p99_ms"] = float(contract.p99_ms)
    return msgspec.convert(wanted, SlaSpec)


def run_with_bodies(
    module: str, bodies: list[dict[str, Any]], options: Options, *words: str
) -> dict[str, Any]:
    """Run a job on these requests; its last line."""
    with options.client() as client, tempfile.TemporaryDirectory(prefix="mo") as folder:
        path = Path(folder) / "bodies"
        path.write_bytes(msgpack.packb(bodies))
        return run_job(module, "--socket", str(client.path), "--bodies", str(path), *words)


def _supervisor_pid(options: Options) -> int:
    """The process above all others of the mesh."""
    from supervisor import run

    with home_errors(options):
        return int(run.status(options.path)["pid"])


def _first_ready(options: Options) -> str:
    with options.client() as client:
        names = sorted(row.name for row in client.call("models").models if row.state == "ready")
    if not names:
        raise CommandError("MODEL_NOT_READY", "no model is ready", "mortise models")
    return str(names[0])


class Given(NamedTuple):
    """The user's own input of the requests, at most one."""

    rows: str | None
    inputs: str | None
    text: str | None
    input_ids: str | None


def _bodies(contract: ModelContract, given: Given, options: Options) -> list[dict[str, Any]]:
    if sum(one is not None for one in given) > 1:
        raise UsageError("at most one of --rows, --inputs, --text and --input-ids is taken")
    if given.rows is not None:
        return [{"rows": read_rows(given.rows)}]
    if given.inputs is not None:
        return [{"inputs": read_inputs(given.inputs)}]
    if given.text is not None:
        return [{"text": [one]} for one in read_text(given.text, "--text")]
    if given.input_ids is not None:
        return [{"input_ids": read_ids(given.input_ids)}]
    if contract.tokens is not UNSET:
        return token_bodies(contract.tokens)
    if contract.view is UNSET:
        return tensor_bodies(contract)
    with options.client("data_fabric") as client:
        views = client.call("views").views
    for view in views:
        if (view.name, view.version) == (contract.view.name, contract.view.version):
            columns = {name: field.to_builtin() for name, field in view.request.items()}
            return row_bodies(columns)
    raise CommandError(
        "VIEW_UNKNOWN", f"view {contract.view.name} is not loaded", "mortise features show"
    )


def _show(model: str, found: dict[str, Any]) -> None:
    stretches = [found["load"]] if "load" in found else []
    stretches += found.get("steps", [])
    print_table(_COLUMNS, [_stretch(row) for row in stretches])
    if saturation := found.get("saturation"):
        above = saturation["failed_per_s"]
        print_line(
            f"{model} sustains {saturation['sustained_per_s']:g}/s"
            + ("" if above is None else f", and not {above:g}/s")
            + ("; there the generator was the limit" if saturation["generator_limited"] else "")
        )
    verdict = {"met": "kept", "missed": "missed", "generator": "not decided"}[found["outcome"]]
    print_line(
        f"promise (p99 ≤ {found['p99_ms_promised']:g} ms, availability ≥"
        f" {found['availability_promised']:g}): {verdict}, {found['why']}"
    )
    for row in stretches:
        if row.get("first_error") and not row["answered"]:
            print_line(f"none was answered; the first error: {row['first_error']}")
            break


def _stretch(row: dict[str, Any]) -> tuple[Any, ...]:
    failures = ", ".join(f"{name} {count}" for name, count in row["failures"].items())
    return (
        row["offered_per_s"], row["answered_per_s"], row["p50_ms"], row["p90_ms"], row["p99_ms"],
        row["p999_ms"], row["max_ms"], row["failed"], row["generator_lag_ms_p99"],
        f"{row['generator_cpu_share']:.0%}",
        failures or ("the generator was late" if row["generator_limited"] else None),
    )  # fmt: skip


def _show_soak(model: str, found: dict[str, Any]) -> None:
    columns = ("process", "what", "first", "last", "slope per minute", "95 % interval", "limit", "")
    print_table(
        columns,
        [
            (
                row["process"], row["what"], row["first"], row["last"], row["slope_per_min"],
                f"{row['low_per_min']:g} … {row['high_per_min']:g}", row["limit_per_min"],
                None if row["is_flat"] else "grows",
            )
            for row in found["slopes"]
        ],
    )  # fmt: skip
    verdict = "flat" if found["is_flat"] else "NOT flat: " + "; ".join(found["reasons"])
    print_line(
        f"{model}: {found['answered']} answered, {found['failed']} failed in"
        f" {found['seconds']:g} s; {verdict}"
    )
