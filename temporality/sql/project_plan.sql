-- Each statement of a step looks up rows by their key (LATERAL … OFFSET 0 keeps it so), in tables that may be huge and have
-- grown since their statistics were taken: a plan that reads a whole table is never right here.
SET LOCAL enable_seqscan = off;
SET LOCAL jit = off
