"""Names, sizes and docstrings: the parts of the style that a machine can hold."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import REASONS
from shared import logs

ROOT = Path(__file__).parents[2]
PRODUCT = ("contracts", "shared", "services", "supervisor", "mortise")
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
GENERATED = {"mortise/generated.py"}
TABLES = {
    "contracts/policies.py": "one struct per policy kind, read as one table",
    "contracts/control.py": "one struct per message of the control plane, read as one table",
}
BANNED = re.compile(r"(^|_)(manager|managers|helper|helpers|util|utils|info|misc)(_|$)")


def files(*folders: str) -> list[Path]:
    """Every Python file below the folders, the generated one left out."""
    found = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in GENERATED
    ]
    assert len(found) >= len(folders), "nothing to check"
    return found


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("folder", PRODUCT)
def test_a_module_is_one_noun(folder: str) -> None:
    """No product module is longer than 400 lines, but for tables with a reason."""
    long = {
        str(path.relative_to(ROOT)): count
        for path in files(folder)
        if (count := len(path.read_text().splitlines())) > MODULE_LINES_MAX
        and str(path.relative_to(ROOT)) not in TABLES
    }
    assert not long


@pytest.mark.parametrize("folder", PRODUCT)
def test_a_function_does_one_thing(folder: str) -> None:
    """No product function is longer than 70 lines, docstring included."""
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in files(folder)
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long


@pytest.mark.parametrize("folder", PRODUCT)
def test_names_say_what_they_are(folder: str) -> None:
    """No module, class or function carries a word that says nothing."""
    vague = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(folder)
        for name in [
            path.stem,
            *(
                node.name.lower()
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            ),
        ]
        if BANNED.search(name)
    ]
    assert not vague


@pytest.mark.parametrize("folder", PRODUCT)
def test_modules_and_public_things_have_docstrings(folder: str) -> None:
    """Every module, and every public class and function at its top, says its contract."""
    silent = []
    for path in files(folder):
        text = path.read_text()
        tree = ast.parse(text)
        if text.strip() and not ast.get_docstring(tree):
            silent.append(str(path.relative_to(ROOT)))
        silent += [
            f"{path.relative_to(ROOT)}: {node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
            and not (path.name == "policies.py" and node.name.endswith("Policy"))
        ]
    assert not silent


def test_every_test_says_the_fact_it_proves() -> None:
    """Every test function has a docstring."""
    silent = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in files("tests")
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not silent


def test_no_exception_is_swallowed() -> None:
    """No bare except, and no handler whose whole body is `pass`."""
    swallowed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files(*PRODUCT)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or all(isinstance(line, ast.Pass) for line in node.body))
    ]
    assert not swallowed


def test_log_records_do_not_name_whom_they_are_about_as_their_writer() -> None:
    """No call of a logger sets a key that belongs to every record (`instance` and the like)."""
    clashes = [
        f"{path.relative_to(ROOT)}:{node.lineno} {keyword.arg}"
        for path in files(*PRODUCT)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
        for keyword in node.keywords
        if keyword.arg in logs.OWN
    ]
    assert not clashes


def test_pure_modules_touch_no_socket_and_no_loop() -> None:
    """Decisions are pure: these modules import neither asyncio nor socket, nor read a clock."""
    pure = [
        *(ROOT / "contracts").glob("*.py"),
        *(path for pattern in PURE for path in ROOT.glob(pattern)),
    ]
    assert len(pure) > len(PURE), "nothing to check"
    impure = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in pure
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
        if name.split(".")[0] in {"asyncio", "socket", "uvloop", "time", "threading"}
    ]
    assert not impure


PURE = (
    "shared/deadline.py",
    "shared/wire/framing.py",
    "supervisor/restart.py",
    "services/orchestrator/admission.py",
    "services/orchestrator/routing.py",
    "services/orchestrator/queue.py",
    "services/orchestrator/batching.py",
    "services/orchestrator/request.py",
    "services/model_runtime/generations.py",
    "services/model_runtime/preprocess.py",
    "services/model_runtime/postprocess.py",
    "services/data_fabric/sql.py",
    "services/data_fabric/closure.py",
    "services/data_fabric/validation.py",
    "services/control_plane/chain.py",
    "services/control_plane/rules.py",
    "services/control_plane/push.py",
    "services/control_plane/snapshots.py",
)


def test_a_refusal_for_the_load_says_why() -> None:
    """Wherever OVERLOADED or QUOTA_EXCEEDED is raised, `details.reason` is there, and from the
    closed list where it is spelt out."""
    silent, unknown, seen = [], [], 0
    for path in files("shared", "services"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "MeshError"):
                continue
            if not node.args or ast.unparse(node.args[0]) not in (
                "'OVERLOADED'",
                "'QUOTA_EXCEEDED'",
            ):
                continue
            seen += 1
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            details = {word.arg: ast.unparse(word.value) for word in node.keywords}.get("details")
            if details is None or "'reason': " not in details:
                silent.append(where)
                continue
            spelt = re.search(r"'reason': '(\w+)'", details)
            if spelt and spelt[1] not in REASONS:
                unknown.append(where)
    assert seen >= 8, "the refusals are found"
    assert not silent
    assert not unknown
