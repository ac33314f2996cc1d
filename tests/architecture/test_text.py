"""What a committed file must not say, and what the documents must not lie about."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = {".py", ".md", ".toml", ".sql", ".txt", ".json", ".yml", ".yaml", ".ini", ".sh"}


def committed() -> list[Path]:
    """Every text file that git tracks or would track; all of them where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.splitlines()
    paths = [ROOT / name for name in names] or [
        path for path in ROOT.rglob("*") if ".venv" not in path.parts
    ]
    found = [path for path in paths if path.suffix in TEXT and path.is_file()]
    assert found, "nothing to check"
    return found


def test_no_absolute_home_path() -> None:
    """No file names the folder it was written in: a checkout works wherever it is copied."""
    pattern = re.compile("|".join(re.escape(f"{path}/") for path in (ROOT, Path.home())))
    lines = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in committed()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not lines


def test_links_between_documents_lead_somewhere() -> None:
    """Every relative link of a Markdown file names a file that exists."""
    broken = []
    for path in committed():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert not broken


def test_paths_in_the_architecture_page_exist() -> None:
    """ARCHITECTURE.md tells the truth: each file or folder it names in code quotes is there."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`([A-Za-z_]+(?:/[A-Za-z_0-9.]+)+/?)`", text)
    assert named, "nothing to check"
    assert not [name for name in named if not (ROOT / name).exists()]
