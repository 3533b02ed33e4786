"""Which rows a legal hold keeps: a rule for each table, or the reason why it needs none. A test looks at all models.

The rules are carried out by the trigger `kernel_hold` of each table, made by migrations with the same words; a new
table needs a line here and, with a rule, a trigger in its migration.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# How a row's project and run are found, as the trigger function `runs_keep_what_is_held` takes it.
RULES: Mapping[str, str] = MappingProxyType({
    "runs.Project": "project",
    "runs.ApiKey": "project_id",
    "runs.Agent": "project_id",
    "runs.AgentVersion": "agent",
    "runs.McpServer": "project_id",
    "runs.Tool": "project_id",
    "runs.Run": "run",
    "runs.Operation": "of_run",
    "runs.IdempotencyKey": "of_run",
    "runs.RunMessage": "of_run_alone",
    "runs.Artifact": "artifact",
    "runs.Tombstone": "named",
    "approvals.Policy": "project_name",
    "approvals.Channel": "project_name",
    "approvals.Approval": "named",
    "approvals.Decision": "approval",
    "approvals.Delivery": "named",
    "outbox.Stream": "named",
    "outbox.Event": "stream",
    "outbox.ParkedEvent": "stream",
})  # fmt: skip

# Tables without a rule, and why nothing that a hold protects can be lost there.
EXEMPT: Mapping[str, str] = MappingProxyType({
    "runs.Hold": "its own trigger refuses every deletion, whether the hold is in force or not",
    "runs.AuditEntry": "its own trigger refuses every deletion, whether anything is held or not",
    "runs.RetentionRule": "a wish for the future; each change is an event",
    "runs.Purge": "a receipt; nothing deletes it, and it is told as an event",
    "runs.ModelPrice": "a list of prices; what a call was charged stands with its operation",
    "runs.News": "a wake-up that a workflow has read; what it told about stands in rows of its own",
    "runs.Sandbox": "a sandbox that is alive; its beginning and its end are events",
    "runs.SandboxReport": "what a machine can do at the moment, told anew every minute",
    "outbox.Destination": "the state of a circuit, of no project",
    "outbox.PublisherHeartbeat": "a sign of life of a process",
    "outbox.SourceEpoch": "one row per restore from a backup, deleted by nothing; of no project",
    "outbox.LagSample": "a number of the last hour, overwritten by the next",
    "outbox.PeriodicJob": "a sign of life of a job",
    "auth.User": "records name people by their names, in text of their own; the console deletes nobody",
    "auth.Group": "policies and requests name groups in text of their own",
    "auth.Permission": "made by migrations from the code",
    "auth.User_groups": "who was in a group when something was decided stands with the decision",
    "auth.User_user_permissions": "as auth.User_groups",
    "auth.Group_permissions": "as auth.User_groups",
    "contenttypes.ContentType": "made by migrations from the code",
    "sessions.Session": "a login",
    "admin.LogEntry": "nothing deletes it; what an action did is also told by its event",
    # another database, which only ingest writes to
    "temporality.Event": "nothing deletes from the event store's inbox; its retention is that of its own database",
    "temporality.Conflict": "as temporality.Event",
    "temporality.Head": "a counter",
    "temporality.Token": "a right to write or read, no record of what was done with it",
    "temporality.Projector": "derived: rebuilt from the inbox",
    "temporality.Item": "derived: rebuilt from the inbox",
    "temporality.Progress": "derived: rebuilt from the inbox",
    "temporality.Pending": "derived: rebuilt from the inbox",
    "temporality.Edge": "derived: rebuilt from the inbox",
})  # fmt: skip
