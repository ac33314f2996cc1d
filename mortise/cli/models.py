"""`models`, `pack`, `publish`, `promote`, `rollback`: packs and versions of models."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mortise.addresses import SETTINGS
from mortise.cli.failures import CommandError, UsageError
from mortise.cli.jobs import run_job
from mortise.cli.options import DEFAULTS, Options, Timeout, author_name
from mortise.cli.output import print_json, print_line, print_table, progress
from mortise.cli.patience import patiently
from mortise.cli.remedies import remedy_of
from mortise.result import Record


def models(*, options: Options = DEFAULTS) -> None:
    """Every published version, its state, and how many replicas have it ready."""
    with options.client() as client:
        answer = client.call("models")
    if options.json:
        print_json(answer)
        return
    columns = ("model", "version", "aliases", "task", "state", "replicas", "digest")
    print_table(
        columns,
        [
            (row.name, row.version, row.aliases, row.task, row.state, row.replicas, row.digest)
            for row in answer.models
        ],
    )


def pack(
    source: Path,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Write the pack's folder here instead.")] = None,
    check: Annotated[bool, Parameter(help="Try a finished pack; make nothing.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """Make a pack from a model.toml, try it, and put it into the home's `models/`.

    Args:
        source: a model.toml (docs/backends.md); with --check a pack's folder
    """
    if out is not None and check:
        raise UsageError("--check makes nothing, so there is nothing for --out")
    if not source.exists():
        name = "INVALID_REQUEST"
        raise CommandError(name, f"{source}: no such file or folder", remedy_of(name, "pack"))
    arguments = [str(source)]
    if (options.path / SETTINGS).is_file():
        arguments += ["--home", str(options.path)]  # which says what backends there are
    elif out is None and not check:
        options.check_home()
    arguments += ["--out", str(out)] if out is not None else ["--check"] if check else []
    made = run_job("pack", *arguments)
    if options.json:
        print_json(made)
        return
    print_line(f"{made['model']} is {made['digest']}, {made['bytes']} bytes; every check passed")
    if not check:
        print_line(options.line(f"mortise publish {made.get('folder', made['digest'])}"))


def publish(pack: str, /, *, alias: str | None = None, options: Options = DEFAULTS) -> None:
    """Name a pack as its model's next version.

    Args:
        pack: a pack's folder, which is first copied into `models/`; or the digest of one in there
        alias: a name for the version, as `stable`
    """
    digest = pack if pack.startswith("sha256:") else _stage(Path(pack), options)
    body: dict[str, Any] = {"digest": digest, "author": author_name()}
    if alias is not None:
        body["alias"] = alias
    with options.client("control_plane") as client:
        answer = patiently(lambda: client.call("publish", body))
    if options.json:
        print_json(answer)
    else:
        print_line(f"{answer.model} version {answer.version} is {answer.digest}")
        print_line(options.line(f"mortise promote {answer.model} {answer.version}"))


def promote(
    model: str,
    version: str,
    /,
    *,
    reason: str = "promote",
    timeout: Timeout = None,
    options: Options = DEFAULTS,
) -> None:
    """Deploy a version, wait until it is ready everywhere, then route requests to it."""
    body = {"model": model, "version": version, "author": author_name(), "reason": reason}
    with options.client("control_plane") as client:
        answer = patiently(
            lambda: client.call("promote", body, timeout_s=timeout, on_item=_show_step)
        )
    if options.json:
        print_json(answer)
    else:
        before = f" (before: version {answer.from_version})" if "from_version" in answer else ""
        print_line(
            f"{model} version {version} is active with policy {answer.policy_version}{before}"
        )
        _show_diverted(answer, options)


def rollback(
    model: str | None = None,
    /,
    *,
    to: Annotated[int | None, Parameter(help="The whole state of this policy version.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Bring back a model's previous route, or with --to the whole state of a policy version.

    A second rollback of a model undoes the first: it goes forward again to the version that was
    withdrawn. To go further back, promote that version, or name a policy version with --to.

    Args:
        model: the model whose previous route comes back
    """
    if (model is None) == (to is None):
        raise UsageError("either a model or --to VERSION is needed")
    target = {"to": to} if model is None else {"model": model}
    with options.client("control_plane") as client:
        body = {**target, "author": author_name()}
        answer = patiently(lambda: client.call("rollback", body))
    if options.json:
        print_json(answer)
        return
    if "to_version" in answer:
        _show_route(answer, options)
    print_line(f"policy {answer.version} is active: {answer.commit}")
    _show_diverted(answer, options)


def _show_route(answer: Record, options: Options) -> None:
    """Where a rolled back route leads now, and what the same command would do next."""
    name, to_version = answer.model, answer.to_version
    before = answer.get("from_version")
    if before == to_version:
        print_line(f"{name} has its previous route again; its default stays version {to_version}")
        return
    came = "its route was removed" if before is None else f"from version {before}"
    print_line(f"{name} is back on version {to_version} ({came})")
    if before is not None:
        line = options.line(f"mortise rollback {name}")
        print_line(f"forward again to version {before}: {line}")


def _show_diverted(answer: Record, options: Options) -> None:
    """The splits and rules that go on sending requests to other versions, and how to end it."""
    for policy in answer.get("diverted_by", ()):
        remove = options.line(f"mortise remove {policy.kind} {policy.name}")
        change = options.line("mortise apply FILE")
        print_line(f"but {policy.kind} {policy.name} still sends requests: {policy.detail}")
        print_line(f"  → remove it: {remove}; or change it: {change}")


def _show_step(step: Record) -> None:
    progress(" ".join(str(step[name]) for name in ("step", "instance", "detail") if name in step))


def _stage(folder: Path, options: Options) -> str:
    """Copy a pack into the home's `models/`; its digest."""
    if not (folder / "manifest.json").is_file():
        raise CommandError("PACK_INVALID", f"{folder} is no pack: it has no manifest.json")
    return str(run_job("import_pack", str(folder), "--home", str(options.path))["digest"])
