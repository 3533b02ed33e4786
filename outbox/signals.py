"""What the outbox asks upwards, without knowing who answers."""

from __future__ import annotations

from django.dispatch import Signal

# Sent before a month of the journal is dropped, with `first` and `beyond`: the run ids from `first` up to but without
# `beyond`. A receiver returns the reason why the month must stay (a legal hold, a run that still lives), or "".
# One that raises keeps the month, too. It is sent twice: for the long look, and inside the transaction that drops. A
# receiver that must not miss what is laid down between its last look and the commit of the drop takes, when it finds
# itself in a transaction, a lock that laying down takes as well; it holds until the month is gone.
journal_month_expires = Signal()

# Sent before streams whose month of the journal is gone are removed, with `run_ids`. A receiver returns those that must
# stay. One that raises keeps all of them.
streams_expire = Signal()
