"""What moves when the shares of a sticky split change, over 1,000,000 keys.

    python -m benchmarks.split [--keys N] [--result FILE]

Every key is assigned before and after each change. A change moves Δ slots between neighbours; the
keys that moved must be exactly those whose slots changed hands, and nobody else's. How many keys
that are is chance (a key's slot is a hash): the result shows their share beside Δ.
"""

import argparse
import json
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

from contracts.policies import SLOTS, SplitSpec
from services.orchestrator.split import Split, number_of

KEYS_FULL = 1_000_000
CHANGES: tuple[tuple[str, dict[str, int], dict[str, int]], ...] = (
    ("0 % to 1 %", {"1": SLOTS, "2": 0}, {"1": 9_900_000, "2": 100_000}),
    ("1 % to 10 %", {"1": 9_900_000, "2": 100_000}, {"1": 9_000_000, "2": 1_000_000}),
    ("10 % to 30 %", {"1": 9_000_000, "2": 1_000_000}, {"1": 7_000_000, "2": 3_000_000}),
    ("30 % to 50 %", {"1": 7_000_000, "2": 3_000_000}, {"1": 5_000_000, "2": 5_000_000}),
    ("50 % to 100 %", {"1": 5_000_000, "2": 5_000_000}, {"1": 0, "2": SLOTS}),
    ("back by one slot", {"1": 0, "2": SLOTS}, {"1": 1, "2": SLOTS - 1}),
    (
        "from the second of three to the third",
        {"1": 2_000_000, "2": 5_000_000, "3": 3_000_000},
        {"1": 2_000_000, "2": 4_500_000, "3": 3_500_000},
    ),
)


def measure(keys: int) -> dict[str, Any]:
    """Each change: slots and keys that moved, and how many keys moved that should not have."""
    names = [f"entity {n}" for n in range(keys)]
    slots = [number_of("salt", name) % SLOTS for name in names]
    rows = []
    for name, before, after in CHANGES:
        started = time.perf_counter()
        old, new = (_versions(shares, names) for shares in (before, after))
        took_s = time.perf_counter() - started
        start, end = _moved_range(before, after)
        moved = wrong = 0
        for slot, one, other in zip(slots, old, new, strict=True):
            is_moved = one != other
            moved += is_moved
            wrong += is_moved != (start <= slot < end)
        rows.append(
            {
                "change": name,
                "slots": end - start,
                "slots_share": (end - start) / SLOTS,
                "keys_moved": moved,
                "keys_share": moved / keys,
                "keys_wrong": wrong,
                "us_a_choice": round(took_s / keys / 2 * 1e6, 2),
            }
        )
    return {"keys": keys, "slots": SLOTS, "changes": rows}


def _versions(shares: dict[str, int], names: list[str]) -> list[str]:
    choose = Split.of(SplitSpec(key="entity", salt="salt", shares=shares)).choose
    return [choose(name)[0] for name in names]


def _moved_range(before: dict[str, int], after: dict[str, int]) -> tuple[int, int]:
    """The slots between the old and the new place of the one border that moved."""
    olds, news = (list(accumulate(shares.values())) for shares in (before, after))
    changed = [sorted(pair) for pair in zip(olds, news, strict=True) if pair[0] != pair[1]]
    assert len(changed) == 1, "the change is between neighbours"
    return changed[0][0], changed[0][1]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=KEYS_FULL)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    found = measure(options.keys)
    print(json.dumps(found, indent=1))
    if options.result is not None:
        options.result.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(any(row["keys_wrong"] for row in found["changes"]))


if __name__ == "__main__":
    main()
