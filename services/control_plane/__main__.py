"""`python -m services.control_plane`: started by the supervisor."""

from services.control_plane.service import ControlPlane
from shared.lifecycle import main

main(ControlPlane)
