"""Swapping a backend changes nothing upstream: through a real mesh, a model's second version is an
exported program of the same weights; a pack with an altered graph is refused."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mortise
from mortise.throwaway import Mesh
from services.jobs.pack_writer import write_folder
from tests.unit.services.model_runtime.backends.exported import exported_tiny

BENCH = Path(__file__).parents[3] / "examples" / "bench"


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """The bench home."""
    with Mesh(BENCH) as mesh:
        yield mesh


def command(mesh: Mesh, *words: str) -> subprocess.CompletedProcess[str]:
    """A command as an operator types it."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "mortise", *words, "--home", str(mesh.home)],
        capture_output=True, text=True, timeout=120, check=False, cwd=mesh.home,
    )  # fmt: skip


def ask(client: mortise.Client, rows: int, **options: Any) -> Any:
    """`tiny` of seeded rows."""
    x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    return client.infer("tiny", inputs={"x": x}, **options)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_program_takes_over_from_a_module_with_the_same_answers(
    mesh: Mesh, tmp_path: Path
) -> None:
    """Published and promoted by the command line; bit for bit the same, one row or many; the
    lineage names other weights; a rollback brings the module back."""
    with mesh.client() as client:
        before = {rows: ask(client, rows) for rows in (1, 3, 32, 200)}
        folder = tmp_path / "pack"
        folder.mkdir()
        write_folder(exported_tiny(), folder)
        published = command(mesh, "publish", str(folder), "--json")
        assert published.returncode == 0, published.stderr
        promoted = command(mesh, "promote", "tiny", "2")
        assert promoted.returncode == 0, promoted.stderr
        for rows, old in before.items():
            new = ask(client, rows)
            assert (old.model_version, new.model_version) == ("1", "2")
            assert new.outputs["y"].tobytes() == old.outputs["y"].tobytes()
            assert new.lineage.weights != old.lineage.weights
            assert new.lineage.to_builtin().keys() == old.lineage.to_builtin().keys()
        with pytest.raises(mortise.MortiseError) as caught:
            client.infer("tiny", inputs={"x": np.zeros((1, 63), np.float32)})
        assert caught.value.name == "INVALID_REQUEST"
        assert command(mesh, "rollback", "tiny").returncode == 0
        assert ask(client, 3).model_version == "1"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pack_whose_graph_breaks_a_rule_is_never_published(mesh: Mesh, tmp_path: Path) -> None:
    """`mortise publish` tries it before it is staged, and says what is wrong with it."""
    draft = exported_tiny()
    content = draft.files["program.json"].replace(b"aten.relu.default", b"aten.relu_.default")
    draft = type(draft)(
        **{name: getattr(draft, name) for name in draft.__slots__}
        | {"files": {"program.json": content}}
    )
    write_folder(draft, tmp_path)
    refused = command(mesh, "publish", str(tmp_path))
    assert refused.returncode == 1
    assert "PACK_INVALID" in refused.stderr
    assert "aten.relu_.default" in refused.stderr
    assert "not in the allow-list" in refused.stderr
    with mesh.client() as client:
        assert ask(client, 1).outputs["y"].shape == (1, 2)
