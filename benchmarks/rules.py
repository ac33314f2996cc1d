"""What routing rules cost a request: the deciding alone, in microseconds.

    python -m benchmarks.rules [--calls N] [--result FILE]

Cases: a usual set of three rules, and the dearest that the limits allow: all nodes that a model may
have, none of them skipped, about one parameter, or each about another one.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from shared.compiled import install

USUAL = (
    ("tenant_id in ['acme', 'globex'] and parameters.tier == 'gold'", {"version": "1"}),
    ("risk_level == 2 and row_count > 100", {"risk_level": 3}),
    ("entity starts_with 'test-' or not exists entity and parameters.dry_run", {"refuse": "test"}),
)
aim_us = 5.0
terms = 10
"""Of three nodes each and one for what joins them; three such rules are all a model may have."""


def dearest(first: int = 0, *, is_spread: bool = False) -> str:
    """An expression of as many nodes as one may have, every one of them evaluated."""
    parts = range(first, first + terms)
    if is_spread:
        return " or ".join([f"parameters.p{n} == 'no{n}'" for n in parts])
    return " or ".join([f"parameters.score == {-n - 1}" for n in parts])


def sets() -> dict[str, list[Any]]:
    """The rule policies of each case."""
    from contracts.policies import RulePolicy, RuleSpec, Then

    def rules(rows: Any) -> list[RulePolicy]:
        return [
            RulePolicy(
                name=f"r{n}",
                spec=RuleSpec(model_name="tiny", order=n, when=when, then=Then(**then)),
            )
            for n, (when, then) in enumerate(rows)
        ]

    return {
        "usual": rules(USUAL),
        "dearest of one parameter": rules([(dearest(), {"refuse": "never"})] * 3),
        "dearest of many parameters": rules(
            [(dearest(n, is_spread=True), {"refuse": "never"}) for n in (0, terms, 2 * terms)]
        ),
    }


def measure(calls: int) -> dict[str, Any]:
    """Microseconds of one decision per case: the best and the median of nine runs."""
    from contracts.inference import InferenceRequest
    from services.orchestrator import rules
    from shared.rules_grammar import parse

    body = InferenceRequest(
        model_name="tiny",
        text=["x"],
        tenant_id="acme",
        entity="N12345",
        parameters={"tier": "silver", "score": 0.5, **{f"p{n}": f"text {n}" for n in range(60)}},
    )
    cases: dict[str, Any] = {}
    for name, policies in sets().items():
        compiled, faults = rules.compile_rules(policies)
        assert not faults, faults
        decide = compiled["tiny"].decide
        runs = []
        for _ in range(9):
            start = time.perf_counter()
            for _ in range(calls):
                decide(body)
            runs.append((time.perf_counter() - start) / calls * 1e6)
        cases[name] = {
            "rules": len(policies),
            "nodes": sum(parse(policy.spec.when).nodes for policy in policies),
            "us_median": round(statistics.median(runs), 3),
            "us_best": round(min(runs), 3),
        }
    started = time.perf_counter()
    for _ in range(100):
        parse(dearest())
    return {
        "aim_us": aim_us,
        "is_compiled": not str(rules.__file__).endswith(".py"),
        "calls": calls,
        "cases": cases,
        "parse_us": round((time.perf_counter() - started) * 1e4, 1),
        "python": platform.python_version(),
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    install(Path(__file__).resolve().parents[1])
    found = measure(options.calls)
    print(json.dumps(found, indent=1))
    if options.result is not None:
        options.result.write_text(json.dumps(found, indent=1) + "\n")
    slowest = max(case["us_median"] for case in found["cases"].values())
    raise SystemExit(0 if slowest <= aim_us else f"{slowest} us a request, the aim is {aim_us}")


if __name__ == "__main__":
    main()
