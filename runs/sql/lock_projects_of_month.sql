-- Until the drop of a month of the journal has committed, no hold is placed in the projects that told something in it.
SELECT slug FROM runs_project
WHERE slug IN (SELECT project FROM outbox_stream WHERE run_id >= %(first)s::uuid AND run_id < %(beyond)s::uuid)
ORDER BY slug FOR SHARE
