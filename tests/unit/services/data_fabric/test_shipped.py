"""The flights example brings its certificate along, made by the code as it is now."""

from pathlib import Path

import msgspec
import pytest

from services.data_fabric.certificate import Certificate, subject
from services.data_fabric.evaluation import identify
from services.data_fabric.loading import SHIPPED, data_of
from services.data_fabric.sources import SourceReader
from services.data_fabric.sql import parse
from shared.home import Home

EXAMPLE = Path(__file__).parents[4] / "examples/flights"


def test_the_flights_view_s_certificate_is_current() -> None:
    """A first start compares nothing. After a change of the view, the data, the closure or a
    pinned version: python -m services.jobs.certify_views --home examples/flights"""
    view = parse((EXAMPLE / "features/departure.sql").read_text())
    places = {name: (EXAMPLE, one.path) for name, one in Home(EXAMPLE).config().sources.items()}
    sources = identify(SourceReader(), view, places)
    wanted = subject(view.digest, view.feature_code, data_of(sources))
    found = [
        msgspec.json.decode(path.read_bytes(), type=Certificate)
        for path in (EXAMPLE / SHIPPED).glob("*.json")
    ]
    assert found, "the example ships a certificate"
    if wanted.python not in {one.python for one in found}:
        pytest.skip(f"no certificate is shipped for {wanted.python}; a start makes its own")
    assert wanted.key in {one.key for one in found}
    assert all(one.difference == "" for one in found)
    assert all(one.adversarial >= 20_000 and one.replayed >= 4_000 for one in found)
