"""How the apps above hear of a decision."""

from django.dispatch import Signal

# Sent inside the transaction that moved the request, with `approval`: what follows from it commits with it.
resolved = Signal()
