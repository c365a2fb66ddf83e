"""`python -m clearhead`."""

from clearhead.cli import app

app()
