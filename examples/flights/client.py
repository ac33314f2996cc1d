"""Ten flights in, a table of predictions with their lineage out: `python client.py [--home DIR]`.

Needs only the SDK (`pip install mortise`) and a running mesh of the flights home.
"""

import argparse
import sys

from mortise import Client, MortiseError, Result

COLUMNS = (
    "scheduled_at", "carrier", "flight", "tailnum", "origin", "dest", "distance_mi",
    "sched_dep_local",
)  # fmt: skip
FLIGHTS = (  # two days before Christmas; the last number is how late it really arrived, in minutes
    ("2013-12-22T03:25:00Z", "B6", 623, "N599JB", "JFK", "LAX", 2475, 2225, 26),
    ("2013-12-22T03:45:00Z", "B6", 486, "N258JB", "JFK", "ROC", 264, 2245, -3),
    ("2013-12-22T19:39:00Z", "EV", 4171, "N14125", "EWR", "MSN", 799, 1439, 30),
    ("2013-12-22T22:10:00Z", "MQ", 3530, "N820MQ", "LGA", "DTW", 502, 1710, 98),
    ("2013-12-22T23:05:00Z", "EV", 3264, "N11187", "EWR", "MEM", 946, 1805, 93),
    ("2013-12-23T11:15:00Z", "UA", 1044, "N17730", "EWR", "ORD", 719, 615, 19),
    ("2013-12-23T12:30:00Z", "AA", 29, "N3JTAA", "LGA", "PBI", 1035, 730, 0),
    ("2013-12-23T13:10:00Z", "EV", 5463, "N612QX", "LGA", "BNA", 764, 810, 45),
    ("2013-12-23T19:25:00Z", "FL", 1070, "N982AT", "LGA", "ATL", 762, 1425, 12),
    ("2013-12-23T22:15:00Z", "AA", 291, "N3FJAA", "JFK", "AUS", 1521, 1715, 243),
)


def show(result: Result) -> None:
    """Print one line a flight, then what the answer cost and what it was made of."""
    print("flight   route     p(late)  confidence  action               arrived, minutes late")
    for flight, prediction in zip(FLIGHTS, result.predictions, strict=True):
        _, carrier, number, _, origin, dest, *_, minutes_late = flight
        print(
            f"{carrier:<2} {number:<5} {origin} {dest}  {prediction.probabilities.late:>7.3f}"
            f"  {prediction.confidence_score:>10.3f}  {prediction.get('action', '-'):<20}"
            f" {minutes_late:>4}"
        )
    print(f"\n{result.model_name} version {result.model_version}, policy {result.policy_version}")
    for stage, us in result.timing_us.items():
        if stage != "hops":
            print(f"  {stage:<12} {us / 1_000:>8.2f} ms")
    for name, digest in result.lineage.items():
        print(f"  {name:<12} {digest}")
    print(f"  trace        {result.trace_id}")


def main() -> int:
    """Ask for all ten at once; exit code 1 with the error's name when it is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", help="default: MORTISE_HOME, then the current directory")
    parser.add_argument("--risk", type=int, default=2, help="1 (highest) … 3")
    options = parser.parse_args()
    rows = [dict(zip(COLUMNS, flight, strict=False)) for flight in FLIGHTS]
    try:
        with Client(home=options.home) as client:
            show(client.infer("delay", rows=rows, risk_level=options.risk, entity="night-desk"))
    except MortiseError as error:
        print(error, file=sys.stderr)
        if remedy := getattr(error, "remedy", ""):  # nothing listens there
            print(f"  → {remedy}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
