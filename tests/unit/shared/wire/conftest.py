"""Property tests of the wire: no time limit per example, since a shared machine stalls."""

from hypothesis import settings

settings.register_profile("wire", deadline=None, max_examples=100, print_blob=True)
settings.load_profile("wire")
