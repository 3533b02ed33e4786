"""How one wing of the house tells the other that something is new."""

from django.dispatch import Signal

# Sent after the commit, with `run_id`: the workflow of that run should look at the database. Losing it is harmless,
# its row of `News` stays until somebody looked, and the sweep sends another.
news = Signal()
