"""The job that ships certificates with a home."""

import pytest

from contracts.errors import MeshError
from services.data_fabric.loading import SHIPPED
from services.jobs.certify_views import certify_home
from tests.unit.services.data_fabric.loaded import load
from tests.unit.services.data_fabric.small_home import SOME_TRIPS, VIEW, SmallHome


def test_a_shipped_certificate_saves_the_comparison(uncertified: SmallHome) -> None:
    """The load takes it from where the home brings it along, and writes none of its own."""
    certificate = certify_home(uncertified.path)[0]
    assert load(uncertified).lineage.certificate == certificate.digest()
    assert not list(uncertified.certificates.iterdir())


def test_older_certificates_are_replaced(home: SmallHome) -> None:
    """One for each view as it is now."""
    certify_home(home.path)
    SmallHome.create(home.path, trips=SOME_TRIPS.slice(0, 300))
    certify_home(home.path)
    assert len(list((home.path / SHIPPED).iterdir())) == 1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [("10e0", "10.5", "decimal in one engine"), ("s.trips_1d AS", "abs(s.trips_1d) AS", "ABS")],
)
def test_a_view_without_a_certificate_fails_the_job(
    home: SmallHome, old: str, new: str, reason: str
) -> None:
    """Refused, or outside the closure's subset; the reason is the job's."""
    SmallHome.create(home.path, view=VIEW.replace(old, new))
    with pytest.raises(MeshError, match=f"trip.sql.*{reason}"):
        certify_home(home.path)
