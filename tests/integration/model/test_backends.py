"""Swapping a backend changes nothing upstream: through a real mesh, a model's second version is an
exported program of the same weights; a pack with an altered graph is refused; a backend of an
installed package serves."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mortise
from mortise.throwaway import Mesh
from services.jobs.pack_writer import write_folder
from tests.unit.services.model_runtime.backends.exported import exported_tiny

EXAMPLES = Path(__file__).parents[3] / "examples"
BENCH = EXAMPLES / "bench"


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


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A Python environment of its own with the example package installed, beside all of ours."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    source = tmp_path / "package"
    shutil.copytree(EXAMPLES / "backend", source)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
         "--no-build-isolation", "--target", site, source],
        check=True, timeout=120,
    )  # fmt: skip
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_backend_of_an_installed_package_serves(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed with its checks, refused while the home does not allow it, then published, promoted
    and asked: docs/backends.md, carried out."""
    home = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp")) / "h"
    monkeypatch.chdir(EXAMPLES.parent)

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [environment, "-P", "-m", "mortise", *words, "--home", home],
            capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
        assert ran.returncode == code, ran.stderr
        return ran

    shutil.copytree(BENCH, home)
    refused = run("pack", "examples/backend/model.toml", code=1)
    assert "add it to [runtime] backends of mortise.toml" in refused.stderr
    file = home / "mortise.toml"
    file.write_text(file.read_text() + 'backends = ["times"]\n')
    made = json.loads(run("pack", "examples/backend/model.toml", "--json").stdout)
    try:
        run("start", "--detach")
        run("publish", made["digest"])
        run("promote", "times", "1")
        with mortise.Client(home=home) as client:
            answer = client.infer("times", inputs={"x": np.ones((2, 3), np.float32)})
        assert answer.outputs["y"].tolist() == [[1.0, 2.0, 3.0]] * 2
    finally:
        run("stop")
        shutil.rmtree(home.parent, ignore_errors=True)
