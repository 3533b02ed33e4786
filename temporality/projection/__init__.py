"""The projection: runs, operations, approvals and knowledge, as the applied events make them."""
