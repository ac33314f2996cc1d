"""The infrastructure digest."""

import os
import socket

from shared import infrastructure


def test_the_digest_moves_with_any_fact() -> None:
    """Equal facts give equal digests, in any order; one changed package gives another."""
    found = infrastructure.facts()
    assert infrastructure.digest(found) == infrastructure.digest(dict(reversed(found.items())))
    assert infrastructure.digest({**found, "package.torch": "9.9"}) != infrastructure.digest(found)


def test_facts_name_what_matters_and_nobody() -> None:
    """Kernel, interpreter and packages are there; no host name, user or path is."""
    found = infrastructure.facts()
    assert found["kernel"] == os.uname().release
    assert found["package.msgspec"] != "absent"
    text = " ".join(found.values())
    assert socket.gethostname() not in text.split()
    assert os.getcwd() not in text
