"""The parent of every runtime: has imported torch and the service, and nothing has computed yet.

No forward, no thread setting, no CUDA here: each of them would break the workers it forks.
"""

import torch

from services.model_runtime.service import ModelRuntime
from shared.forking import serve_template


def seed() -> None:
    """Without it all workers share the template's random state."""
    torch.seed()


if __name__ == "__main__":
    serve_template(ModelRuntime, seed)
