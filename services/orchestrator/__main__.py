"""`python -m services.orchestrator`, as the supervisor starts it."""

from services.orchestrator.service import Orchestrator
from shared.lifecycle import main

if __name__ == "__main__":
    main(Orchestrator)
