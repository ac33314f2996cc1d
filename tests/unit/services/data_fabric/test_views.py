"""Which view answers: deployed ones before the home's text, versions by number, states told."""

from types import SimpleNamespace
from typing import Any

import pytest

from contracts.errors import MeshError
from services.data_fabric import views as views_module
from services.data_fabric.views import Held, Views, Wanted


def wanted(name: str, version: str, digest: str, *, is_deployed: bool = True) -> Wanted:
    """A wanted view."""
    return Wanted(name, version, digest, "text", is_deployed)


def ready(views: Views, *digests: str) -> None:
    """Say that these are loaded; what serves one is its digest."""
    for digest in digests:
        views.held[digest].served = digest  # type: ignore[assignment]
        views.held[digest].state = "ready"


def test_the_highest_deployed_version_answers_where_none_is_named() -> None:
    """By number, not by text; a named one is found as named."""
    views = Views()
    views.want([wanted("v", "9", "d9"), wanted("v", "10", "d10"), wanted("w", "11", "d11")])
    ready(views, "d9", "d10", "d11")
    unnamed: Any = views_module.UNSET
    assert views.find("v", unnamed) == "d10"
    assert views.find("v", "9") == "d9"


def test_the_home_s_text_answers_only_where_nothing_is_deployed() -> None:
    """Editing a file never changes what a published version computes."""
    views = Views()
    views.want([wanted("v", "1", "home", is_deployed=False)])
    ready(views, "home")
    assert views.find("v", "1") == "home"
    views.want([wanted("v", "1", "home", is_deployed=False), wanted("v", "1", "pack")])
    assert list(views.held) == ["pack"]


def test_the_same_text_is_loaded_once() -> None:
    """A pack's view and the home's file of the same bytes; the loaded one stays."""
    views = Views()
    views.want([wanted("v", "1", "d", is_deployed=False)])
    ready(views, "d")
    assert views.want([wanted("v", "1", "d"), wanted("v", "1", "d", is_deployed=False)]) == []
    assert views.find("v", "1") == "d"
    assert views.held["d"].wanted.is_deployed


def test_what_is_not_there_is_told_apart() -> None:
    """Unknown, loading and failed are different answers."""
    views = Views()
    views.want([wanted("v", "1", "d")])
    with pytest.raises(MeshError, match=r"VIEW_UNKNOWN: no view w version 1; known views: v"):
        views.find("w", "1")
    with pytest.raises(MeshError, match="UNAVAILABLE: view v is loading") as loading:
        views.find("v", "1")
    assert loading.value.retry_after_ms == 200
    views.held["d"].state, views.held["d"].reason = "failed", "line 3: no"
    with pytest.raises(MeshError, match="VIEW_UNKNOWN: view v failed to load: line 3: no"):
        views.find("v", "1")


def test_views_that_left_are_given_back() -> None:
    """So that their memory can be freed."""
    views = Views()
    views.want([wanted("v", "1", "a"), wanted("v", "2", "b")])
    left = views.want([wanted("v", "2", "b")])
    assert [held.wanted.digest for held in left] == ["a"]
    assert list(views.held) == ["b"]


def test_one_version_has_one_text() -> None:
    """A second deployed text under the same name and version is refused, the first stays."""
    views = Views()
    views.want([wanted("v", "1", "a"), wanted("v", "1", "b")])
    states = {state.digest: (state.state, state.reason) for state in views.states()}
    assert states["a"] == ("loading", views_module.UNSET)
    assert states["b"] == ("failed", "version 1 is another text, a")
    assert [held.wanted.digest for held in views.to_load({}, lambda loaded: False)] == ["a"]


def test_more_views_than_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is in the reason."""
    monkeypatch.setattr(views_module, "views_max", 1)
    views = Views()
    views.want([wanted("v", "1", "a"), wanted("w", "1", "b")])
    assert views.held["b"].reason == "more than views_max = 1 views"


def test_a_view_is_tried_once_for_a_state_of_the_sources() -> None:
    """New ones at once, failed ones after a change or a new policy, served ones when their own
    files changed."""
    views = Views()
    views.want([wanted("v", "1", "a")])
    now: Any = {"s": ["one"]}
    held = views.held["a"]

    def to_load(now: Any, *, is_changed: bool = False) -> list[Held]:
        return views.to_load(now, lambda loaded: is_changed)

    assert to_load(now) == [held]
    held.tried, held.state, held.reason = now, "failed", "no file"
    assert to_load(now) == []
    assert to_load({"s": ["two"]}) == [held]
    views.forget_failures()
    assert to_load(now) == [held]
    held.tried, held.state = now, "ready"
    held.served = SimpleNamespace(loaded=None)  # type: ignore[assignment]
    assert to_load({"s": ["two"]}) == []
    assert to_load({"s": ["two"]}, is_changed=True) == [held]
