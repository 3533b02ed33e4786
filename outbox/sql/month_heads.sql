-- What any append, delivery or parking among the runs of a month changes.
SELECT count(*), sum(head), sum(published),
    (SELECT count(*) FROM outbox_parkedevent
     WHERE run_id >= %(first)s AND run_id < %(beyond)s AND state IN ('parked', 'queued'))
FROM outbox_stream WHERE run_id >= %(first)s AND run_id < %(beyond)s
