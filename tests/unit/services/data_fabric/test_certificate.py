"""The verdict of a certificate: what counts as equal, and what its rows reach."""

import math
from typing import Any

import pytest

from services.data_fabric.adversarial import AdversarialRequests
from services.data_fabric.certificate import (
    CertificateStore,
    close,
    first_difference,
    identical,
    subject,
)
from services.data_fabric.certification import key_columns, replayed_requests
from services.data_fabric.engine import Engine
from services.data_fabric.evaluation import identify, materialise
from services.data_fabric.field_rules import broken_limit
from services.data_fabric.loading import build_indexes
from services.data_fabric.plan import bind
from services.data_fabric.sources import SourceReader
from services.data_fabric.sql import parse
from tests.unit.services.data_fabric.small_home import PATTERNS, VIEW, SmallHome


@pytest.mark.parametrize(
    ("left", "right", "is_equal"),
    [
        (1, 1, True), (1, 2, False), (1, 1.0, False), (True, 1, False), (None, 0, False),
        (None, None, True), ("a", "a", True), ("é", "e\u0301", False),
    ],
)  # fmt: skip
def test_exact_values_are_equal_in_type_and_value(left: Any, right: Any, is_equal: bool) -> None:
    """Integers, booleans, texts and times."""
    assert identical(left, right) is is_equal


@pytest.mark.parametrize(
    ("left", "right", "is_equal"),
    [
        (1.0, 1.0 + 9e-13, True), (1.0, 1.0 + 2e-12, False), (1e300, 1e300 * (1 + 1e-13), True),
        (0.0, -0.0, True), (0.0, 1e-300, False), (math.nan, math.nan, True), (math.nan, 1.0, False),
        (math.inf, math.inf, True), (math.inf, -math.inf, False), (math.inf, 1e308, False),
        (None, None, True), (None, 0.0, False),
    ],
)  # fmt: skip
def test_floats_are_equal_within_the_tolerance(left: Any, right: Any, is_equal: bool) -> None:
    """Relative to the larger magnitude; infinities and nulls exactly."""
    assert close(left, right) is is_equal
    assert close(right, left) is is_equal


def test_the_first_difference_is_described() -> None:
    """Feature, both values and the request; nothing where all is equal."""
    names, dtypes = ["a", "b"], ["int64", "float64"]
    ours = [(1, 2), (0.1, math.nan)]

    def describe(row: int) -> object:
        return f"row {row}"

    assert first_difference(names, dtypes, ours, [[1, 2], [0.1, math.nan]], describe) == ""
    found = first_difference(names, dtypes, ours, [[1, 2], [0.1, 0.2]], describe)
    assert found == "b: closure nan, engine 0.2, for row 1"


def test_a_certificate_depends_on_view_code_and_data() -> None:
    """And on nothing that differs between two runs."""
    one = subject("v", "c", "d")
    assert one == subject("v", "c", "d")
    keys = {one.key, subject("w", "c", "d").key, subject("v", "x", "d").key}
    assert len(keys | {subject("v", "c", "x").key}) == 4


def test_the_store_gives_back_only_what_the_name_says(home: SmallHome) -> None:
    """Another key, a cut file or no file is no certificate."""
    shipped = home.path / "features/certificates"
    store = CertificateStore(home.certificates, shipped)
    one = subject("v", "c", "d")
    assert store.get(one.key) is None
    store.put(one)
    assert store.get(one.key) == one
    assert CertificateStore(shipped, home.certificates).get(one.key) == one
    path = home.certificates / f"{one.key.removeprefix('sha256:')}.json"
    other = subject("w", "c", "d")
    path.with_stem(other.key.removeprefix("sha256:")).write_bytes(path.read_bytes())
    assert store.get(other.key) is None


def test_adversarial_rows_keep_the_contract_and_reach_the_relations(home: SmallHome) -> None:
    """Every row is valid; nulls, signed zeros, infinities, Unicode, exact times of the history
    under existing keys, and both sides of a clock change are among them; a seed gives the same
    rows."""
    view, reader = parse(VIEW), SourceReader()
    sources = identify(reader, view, {name: (home.path, p) for name, p in PATTERNS.items()})
    plan = bind(view, {name: source.columns() for name, source in sources.items()})
    engine = Engine()
    materialise(engine, reader, plan, sources)
    indexes = list(build_indexes(engine, plan).values())
    engine.close()
    draw, again = (
        AdversarialRequests(view.header, indexes, key_columns(plan), seed=9) for _ in range(2)
    )
    rows = [draw.row() for _ in range(4_000)]
    assert [again.row() for _ in range(4_000)] == rows
    for row in rows:
        for name, contract in view.header.request.items():
            assert broken_limit(contract, row[name]) is None, (name, row)
    weights = [row["weight"] for row in rows]
    assert {None, math.inf, -math.inf} <= set(weights)
    assert {str(one) for one in weights if one == 0} == {"0.0", "-0.0"}
    assert any(not text["station"].isascii() for text in rows)
    by_vehicle = next(index for index in indexes if index.relation == "by_vehicle")
    hits = [
        row["at"] - time
        for row in rows
        if row["vehicle"] in by_vehicle.entries
        for time in by_vehicle.entries[row["vehicle"]][0]
    ]
    assert {-1, 0, 1} <= set(hits)
    assert replayed_requests(reader, view.header, sources) == []
