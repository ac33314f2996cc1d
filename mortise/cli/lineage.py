"""`trace` and `snapshot`: what an answer, or the mesh at an instant, was made of."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mortise.cli.failures import UsageError
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import print_json, print_line, print_table
from mortise.result import Record

_DRAWN = ("combination", "timing_us", "hops")
"""Fields of a trace that have a table of their own."""
_MEMBERS_OF_A_SHARE = ("data", "model")
"""What tells the shares of a split apart; infrastructure and policy are the same for all."""
_SLOTS = 10_000_000
"""Of a split (contracts/policies.py), which the shares of one model sum to."""
_MEMBERS = {"data": "data + feature_code", "model": "model (whole pack)"}
"""Members of a version that join more than a lineage's field of that name."""


def trace(trace_id: str, /, *, options: Options = DEFAULTS) -> None:
    """Everything about one answered request: lineage, times, hops.

    Args:
        trace_id: 32 hexadecimal digits, as `infer` answers them
    """
    with options.client("control_plane") as client:
        answer = client.call("trace", {"trace_id": trace_id})
    if options.json:
        print_json(answer)
    else:
        _show_trace(answer)


def snapshot(
    *,
    at: Annotated[str | None, Parameter(help="An instant (RFC 3339) instead of now.")] = None,
    trace: Annotated[str | None, Parameter(help="The combination that answered this.")] = None,
    model: str | None = None,
    write: Annotated[Path | None, Parameter(help="Write the model's .ai-version here.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """The combination in force: data × model × infrastructure × policy of each model.

    Args:
        model: only this model
    """
    wanted = {"at": at, "trace_id": trace, "model": model}
    body = {name: value for name, value in wanted.items() if value is not None}
    with options.client("control_plane") as client:
        answer = client.call("snapshot", body)
    if write is not None:
        write.write_text(_only_version(answer), encoding="utf-8")
    if options.json:
        print_json(answer)
        return
    print_line(f"policy {answer.policy_version} at {answer.at}")
    for name, version in answer.versions.items():
        rows = [(_MEMBERS.get(member, member), digest) for member, digest in version.items()]
        combination = answer.combinations.get(name)
        if combination is not None:
            rows.insert(0, ("snapshot", combination.lineage.snapshot))
        print_table((name, ""), rows)
    for name, shares in answer.get("shares", {}).items():
        columns = (f"split {name}", "share", "snapshot", *_MEMBERS_OF_A_SHARE)
        print_table(columns, [_share_row(share) for share in shares])


def _share_row(share: Record) -> tuple[str, ...]:
    """Version and share of the requests; the digests, whole, where its data is known."""
    row = (f"version {share.version}", f"{share.slots * 100 / _SLOTS:.6g} %")
    combination = share.get("combination")
    if combination is None:
        return (*row, "not known yet: nobody reported or used its data", "", "")
    members = combination.version
    return (*row, combination.lineage.snapshot, *(members[one] for one in _MEMBERS_OF_A_SHARE))


def _only_version(answer: Record) -> str:
    """`.ai-version` of the one model in an answer: JSON with data, model, infra, policy."""
    if len(answer.versions) != 1:
        names = ", ".join(answer.versions)
        raise UsageError(f"--write needs one model, there are {names or 'none'}: --model NAME")
    (version,) = answer.versions.values()
    return json.dumps(version.to_builtin(), indent=1, sort_keys=True) + "\n"


def _show_trace(answer: Record) -> None:
    facts = [(name, answer[name]) for name in answer if name not in _DRAWN]
    combination = answer.get("combination")  # none when it was refused before a model was chosen
    if combination is not None:
        facts += [
            ("model", f"{combination.model_name} version {combination.model_version}"),
            ("policy version", combination.policy_version),
            *combination.lineage.items(),
        ]
    print_table(("", ""), facts)
    stages = [(name, us / 1_000) for name, us in answer.timing_us.items() if name != "hops"]
    print_table(("stage", "ms"), stages)
    hops = [(hop.instance, hop.received / 1_000, hop.sent / 1_000) for hop in answer.hops]
    print_table(("hop", "received ms", "sent ms"), hops)
