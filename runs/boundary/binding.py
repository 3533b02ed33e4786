"""What a person's decision on a call covers, as one canonical text: compared byte for byte, never rewritten."""

from __future__ import annotations

from typing import Any

from approvals.contracts import Call, PolicyResult, Request
from kernel_project.primitives.canonical import canonical_bytes, canonical_json, sha256_hex
from runs.boundary import artifacts
from runs.models import Kind, Operation


def binding(operation: Operation, arguments: bytes | None = None) -> str:
    """The text that a yes to this call covers. The stored canonical bytes of its arguments stand in it unchanged.

    Definition and target are those in force now, so a tool that was registered anew, or a server that moved, is another
    call. `operation.tool` must be loaded with its server.
    """
    if arguments is None:
        arguments = artifacts.read(operation.run_id, operation.arguments_digest)
    version = operation.run.agent_version
    before = canonical_json({"agent": version.agent.name, "agent_version": version.digest})
    after = canonical_json(
        {
            "definition": operation.tool.definition_digest if operation.tool else operation.definition_digest,
            "effect": operation.effect,
            "operation": str(operation.id),
            **_target(operation),
            "tool": operation.name,
            **({"twin": str(operation.twin_id)} if operation.twin_id else {}),
        }
    )
    return f'{before[:-1]},"arguments":{arguments.decode()},{after[1:]}'


def _target(operation: Operation) -> dict[str, Any]:
    """Where the call goes: the server by name, and a hash of how it and the tool are set up."""
    tool = operation.tool
    if tool is None:
        return {}
    server = tool.server
    setup = {"server": server.configuration if server else None, "tool": tool.configuration, "remote": tool.remote_name}
    return {"server": server.name if server else "", "target": sha256_hex(canonical_bytes(setup))}


def question(operation: Operation, arguments: bytes) -> Call:
    """The call as policy may look at it; `arguments` are its stored bytes."""
    return Call(
        project=operation.project_id,
        agent=operation.actor,
        tool=operation.name,
        effect=operation.effect,  # type: ignore[arg-type]
        has_key=bool(operation.idempotent_for_seconds),
        # What is left of a sandbox says how its command ended, not what it did outside: nobody is spared a question.
        has_probe=operation.probes and operation.kind != Kind.SANDBOX,
        arguments=arguments,
    )


def request(operation: Operation, arguments: bytes, answer: PolicyResult) -> Request:
    """What a person is asked about this call."""
    return Request(
        project=operation.project_id,
        run_id=operation.run_id,
        operation_id=operation.id,
        agent=operation.actor,
        tool=operation.name,
        effect=operation.effect,
        binding=binding(operation, arguments),
        arguments_hash=operation.arguments_digest,
        requested_by=operation.run.started_by,
        policy=answer,
        idempotent_for_seconds=operation.idempotent_for_seconds,
        probes=operation.probes,
        twin=operation.twin_id is not None,
    )
