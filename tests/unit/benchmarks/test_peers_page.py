"""The comparison's page and chart are those of the committed result; every peer is whole."""

import json
from pathlib import Path
from typing import Any

from benchmarks.peers import chart, page
from benchmarks.peers.run import best
from benchmarks.peers.table import PEERS, WINDOWS, WINDOWS_MS

FOLDER = Path(page.__file__).parent


def result() -> dict[str, Any]:
    """The committed result."""
    found: dict[str, Any] = json.loads(page.RESULTS.read_text())
    return found


def test_the_page_shows_the_result_file() -> None:
    """The generated part of docs/benchmarks.md is what the result file gives."""
    assert page.between(page.PAGE.read_text()) == page.block(result())


def test_the_chart_shows_the_result_file() -> None:
    """docs/peers.svg is what the result file gives."""
    assert page.CHART.read_text() == chart.svg(result())


def test_no_peer_is_left_out_in_silence() -> None:
    """Each has figures, or the reason why it has none."""
    for peer in result()["peers"]:
        assert bool(peer["loads"]) != bool(peer["absent"]), peer["name"]


def test_every_peer_has_its_server_packages_and_windows() -> None:
    """What a row of the table needs is there."""
    kept = json.loads(WINDOWS.read_text())
    for peer in PEERS:
        if peer.check_import:
            assert (FOLDER / "servers" / f"{peer.name}_server.py").is_file()
            pins = (FOLDER / "requirements" / f"{peer.name}.txt").read_text().split()
            assert all("==" in pin for pin in pins)
            assert set(kept[peer.name]["best"].values()) <= set(WINDOWS_MS)


def test_the_shortest_window_of_those_equally_fast_is_the_best() -> None:
    """A few per cent of throughput are not worth a client's waiting."""
    assert best({0.0: 980.0, 5.0: 1_000.0, 10.0: 990.0}) == 0.0
    assert best({0.0: 500.0, 5.0: 1_000.0, 10.0: 990.0}) == 5.0
