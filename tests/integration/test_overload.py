"""The overload, batching and fairness benchmarks at a small size: what holds on any machine."""

from benchmarks.batching import CLIENTS, IDEAL_ROWS_PER_S, PATIENT, apply, measure_load, mesh
from benchmarks.fairness import beside_bulk, hefty, served, wait_for
from benchmarks.overload import SLA, faults, overload
from benchmarks.sockets import ask
from services.jobs.pack_writer import write_pack


def test_64_clients_get_full_batches() -> None:
    """Every answer is right, batches are nearly full, and the cost of `sleepy` is learnt: at least
    the 11.4 ms of a full batch, and not twice that."""
    with mesh("", PATIENT) as home:
        found = measure_load(home, CLIENTS, 2.0)
        values = ask(home / ".mortise/run/orchestrator.sock", "statistics", {})["values"]
    assert not found["errors"]
    assert not found["wrong"]
    assert found["rows_per_batch"] >= 24.0
    assert found["rows_per_s"] >= 0.3 * IDEAL_ROWS_PER_S
    full_us = values["cost_batch_us sleepy 1"] + 32 * values["cost_row_us sleepy 1"]
    assert 11_000 < full_us < 25_000


def test_three_times_the_capacity_is_shed_and_the_mesh_is_well_afterwards() -> None:
    """Every request ends, each refusal has a hint and a reason from the closed list, something is
    answered in each class, and memory does not grow with what was refused."""
    with mesh("", SLA) as home:
        found = overload(home, 4.0)
    groups = found["groups"]
    assert not faults(found)
    for name in ("first", "second", "third"):
        assert groups[name]["answered"] > 0
        assert not groups[name]["refusals_without_hint"]
        assert set(groups[name]["errors"]) <= {"OVERLOADED sla", "OVERLOADED deadline"}
    assert sum(groups["third"]["errors"].values()) > 0
    assert groups["after"]["answered"] > 0
    assert found["reached"]["rss_growth_mib"] < 64.0


def test_class_1_is_answered_beside_a_bulk_that_computes() -> None:
    """Every answer of a model that computes is right, none of class 1 is refused beside 64 clients
    of class 3, and neither starves the other."""
    with mesh("", SLA) as home:
        apply(home, served("hefty", write_pack(hefty(), home / "models"), 1))
        wait_for(home, "hefty", 1)
        found = beside_bulk(home, "hefty", 1.5)
    assert not faults(found)
    assert not found["beside"]["errors"]
    assert found["beside"]["answered"] > 0
    assert found["bulk"]["answered"] > 0
