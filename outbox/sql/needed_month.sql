-- Why a month of the journal must stay: what is undelivered, parked, or belongs to a run that has not told its end (since
-- it was last resumed); NULL if nothing needs it. Holds and purges tell in streams of their own, which end with a release
-- or a receipt.
SELECT coalesce(
    (SELECT 'run ' || run_id || ' has undelivered events' FROM outbox_stream
     WHERE run_id >= %(first)s AND run_id < %(beyond)s AND published < head LIMIT 1),
    (SELECT 'event ' || event_id || ' is parked' FROM outbox_parkedevent
     WHERE run_id >= %(first)s AND run_id < %(beyond)s AND state IN ('parked', 'queued') LIMIT 1),
    (SELECT 'run ' || s.run_id || ' has not ended' FROM outbox_stream s
     WHERE s.run_id >= %(first)s AND s.run_id < %(beyond)s AND NOT EXISTS (
         SELECT FROM outbox_event e WHERE e.run_id = s.run_id
           AND e.type IN ('run.completed', 'run.failed', 'run.cancelled',
                          'hold.released', 'retention.changed', 'retention.purged')
           AND NOT EXISTS (
               SELECT FROM outbox_event r
               WHERE r.run_id = e.run_id AND r.sequence > e.sequence AND r.type = 'run.resumed'
           )
     ) LIMIT 1)
)
