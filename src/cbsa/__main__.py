"""``python -m cbsa``, and ``torchrun -m cbsa``: the command line."""

from cbsa.cli import app

if __name__ == "__main__":
    app()
