-- A settled operation has its result, or the class of its error.
SELECT o.id AS what FROM runs_operation o
WHERE o.state IN ('succeeded', 'tool_error') AND o.result_digest = ''
   OR o.state IN ('failed', 'uncertain', 'blocked', 'denied', 'rejected', 'expired', 'withdrawn') AND o.error_class = ''
