"""The children of a home, and the environment they are born with."""

from dataclasses import replace

import pytest

from shared.home import Config, RuntimeTable
from supervisor.spec import ORDER, ChildSpec, drain_s, mesh_of
from supervisor.variables import variables

FACTS = {"tree": "/t", "threads": 3, "jemalloc": None, "is_template": False}


def test_a_home_has_four_services_in_order() -> None:
    """Control plane first, edge last; runtimes come from the template, the control plane alone
    has no standby and does not overlap its successor."""
    mesh = mesh_of(Config(home_version=1).placed(2))
    assert tuple(child.service for child in mesh.children) == ORDER
    by_name = {child.service: child for child in mesh.children}
    assert [name for name, child in by_name.items() if not child.has_standby] == ["control_plane"]
    assert [name for name, child in by_name.items() if not child.overlaps] == ["control_plane"]
    assert [name for name, child in by_name.items() if child.is_forked] == ["model_runtime"]
    assert mesh.template is not None


def test_replicas_share_one_standby() -> None:
    """Each replica has its place and index; one warm standby worker is enough."""
    runtime = RuntimeTable(replicas=3, threads=2, memory_mib_max=512)
    mesh = mesh_of(Config(home_version=1, runtime=runtime).placed(8))
    replicas = [child for child in mesh.children if child.service == "model_runtime"]
    assert [(child.index, child.has_standby) for child in replicas] == [
        (0, True), (1, False), (2, False),
    ]  # fmt: skip
    assert {(child.threads, child.memory_mib_max) for child in replicas} == {(2, 512)}


def test_a_home_may_do_without_standby() -> None:
    """`standby = false` saves the memory of the second runtime."""
    runtime = RuntimeTable(standby=False)
    mesh = mesh_of(Config(home_version=1, runtime=runtime).placed(2))
    assert not any(c.has_standby for c in mesh.children if c.service == "model_runtime")


def test_one_drain_cannot_use_up_all() -> None:
    """A child's budget is below the mesh's."""
    child = ChildSpec("orchestrator", 0, ())
    with pytest.raises(AssertionError):
        replace(child, drain_s=drain_s)


def test_only_chosen_variables_pass() -> None:
    """What the supervisor was started with stays out, but for a list; ours win."""
    inherited = {
        "PATH": "/bin", "AWS_PROFILE": "p", "SECRET": "s", "LD_PRELOAD": "/evil.so",
        "PYTHONPATH": "/elsewhere", "PYTHONSTARTUP": "/x", "LC_ALL": "de_DE", "TZ": "Asia/Tokyo",
    }  # fmt: skip
    found = variables(inherited, **FACTS)  # type: ignore[arg-type]
    assert found["PATH"] == "/bin"
    assert found["AWS_PROFILE"] == "p"
    assert not {"SECRET", "LD_PRELOAD", "PYTHONSTARTUP"} & set(found)
    assert (found["PYTHONPATH"], found["LC_ALL"], found["TZ"]) == ("/t", "C.UTF-8", "UTC")


def test_threads_and_allocator_are_set_before_exec() -> None:
    """Numeric libraries get the placement's threads; OpenBLAS one, for the fork."""
    found = variables({}, **FACTS)  # type: ignore[arg-type]
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("3", "3")
    assert found["OPENBLAS_NUM_THREADS"] == "1"
    assert found["MALLOC_ARENA_MAX"] == "2"
    assert int(found["MALLOC_TRIM_THRESHOLD_"]) > 16 * 1024 * 1024


@pytest.mark.parametrize(("is_template", "background"), [(True, "false"), (False, "true")])
def test_jemalloc_keeps_the_template_single_threaded(is_template: bool, background: str) -> None:
    """Preloaded where present; its background thread is off where a fork follows."""
    found = variables({}, tree="/t", threads=1, jemalloc="/j.so", is_template=is_template)
    assert found["LD_PRELOAD"] == "/j.so"
    assert f"background_thread:{background}" in found["MALLOC_CONF"]
    assert "dirty_decay_ms" in found["MALLOC_CONF"]


def test_sockets_without_a_runtime_have_a_specification() -> None:
    """Up to `replicas_max` may be started later; each has its index and no standby."""
    runtime = RuntimeTable(replicas=1, replicas_max=3, threads=2)
    mesh = mesh_of(Config(home_version=1, runtime=runtime).placed(8))
    assert [child.index for child in mesh.children if child.service == "model_runtime"] == [0]
    assert [(child.index, child.has_standby, child.threads) for child in mesh.spares] == [
        (1, False, 2), (2, False, 2),
    ]  # fmt: skip
