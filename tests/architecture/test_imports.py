"""Which libraries each folder may import; import-linter holds the rules between our own folders."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"contracts", "shared", "services", "supervisor", "mortise"}
SERVE = {"msgpack", "msgspec", "structlog", "uvloop", "setproctitle"}
ALLOWED = {
    "contracts": {"msgspec"},
    "shared": SERVE,
    "supervisor": SERVE | {"prometheus_client"},
    "services/orchestrator": SERVE,
    "services/control_plane": SERVE | {"apsw"},
    "services/data_fabric": SERVE | {"duckdb", "pyarrow", "sqlglot", "numpy"},
    "services/model_runtime": SERVE | {"torch", "safetensors", "numpy"},
    "services/jobs": SERVE
    | {"torch", "safetensors", "numpy", "duckdb", "pyarrow", "sqlglot", "sklearn"},
    "mortise/cli": {"cyclopts", "rich", "msgpack", "msgspec"},
}
SDK = ("client.py", "async_client.py", "wire.py", "generated.py")


def modules(folder: str) -> list[Path]:
    """Every Python file of a product folder."""
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"{folder} holds nothing to check"
    return found


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_its_libraries(folder: str) -> None:
    """A process stays small because its folder may import only what its row names."""
    foreign = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(folder)
        for name in imported(path) - set(sys.stdlib_module_names) - OURS - ALLOWED[folder]
    }
    assert not foreign


@pytest.mark.parametrize("name", SDK)
def test_the_sdk_needs_only_msgpack(name: str) -> None:
    """`from mortise import Client` works where nothing but msgpack is installed."""
    own = imported(ROOT / "mortise" / name) - set(sys.stdlib_module_names)
    assert own <= {"msgpack", "mortise", "numpy"}


def test_nothing_imports_pickle() -> None:
    """No pickle anywhere in the product, nor what loads one."""
    banned = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    product = [path for folder in OURS for path in modules(folder)]
    assert not [path for path in product if imported(path) & banned]
    assert not [path for path in product if "torch.load(" in path.read_text()]
