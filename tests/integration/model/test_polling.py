"""Loops of a real mesh that turn between the requests of one caller, by the home's `poll_us`."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mortise.throwaway import Mesh

EXAMPLE = Path(__file__).parents[3] / "examples" / "bench"
REQUESTS = 300


@contextmanager
def mesh_polling(folder: Path, poll_us: int) -> Iterator[Mesh]:
    """The bench home with this window everywhere."""
    home = folder / "home"
    shutil.copytree(EXAMPLE, home)
    text = (home / "mortise.toml").read_text()
    text = text.replace("[runtime]\n", f"[runtime]\npoll_us = {poll_us}\n")
    (home / "mortise.toml").write_text(f"{text}\n[orchestrator]\npoll_us = {poll_us}\n")
    with Mesh(home) as mesh:
        yield mesh


def polls_of(mesh: Mesh) -> list[int]:
    """Of orchestrator and runtime, after one caller's requests, one after the other."""
    with mesh.client() as client:
        for number in range(REQUESTS):
            answer = client.infer("tiny", inputs={"x": [[float(number)] * 64]})
            assert answer.outputs["y"].shape == (1, 2)
    found = []
    for service in ("orchestrator", "model_runtime"):
        with mesh.client(service) as client:
            found.append(client.call("statistics")["values"]["polls"])
    return found


@pytest.mark.parametrize("poll_us", [10_000, 0])
def test_one_caller_is_waited_for_unless_that_is_turned_off(tmp_path: Path, poll_us: int) -> None:
    """With a window of 10 ms, longer than the pauses on any machine, both loops turn; with 0
    neither ever does. The answers are the same."""
    with mesh_polling(tmp_path, poll_us) as mesh:
        polls = polls_of(mesh)
    assert [count > 0 for count in polls] == [poll_us > 0] * 2, polls
