"""`python -m services.data_fabric`, as the supervisor starts it."""

from services.data_fabric.service import DataFabric
from shared.lifecycle import main

if __name__ == "__main__":
    main(DataFabric)
