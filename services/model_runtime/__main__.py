"""`python -m services.model_runtime`, as the supervisor starts it."""

from services.model_runtime.service import ModelRuntime
from shared.lifecycle import main

if __name__ == "__main__":
    main(ModelRuntime)
