"""A small MCP server over stdio that answers with exactly the bytes that a test wants. Starts fast; no library.

    raw.py ANSWERS_FILE

ANSWERS_FILE is JSON: tool name -> the text of the JSON-RPC `result`, in which @SIZE:n@ stands for n times "x"; the keys
"tools" (listed as they are), "spawn" (start a descendant in its own session), and "chatter" (print a line first).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ANSWERS = json.loads(Path(sys.argv[1]).read_text())


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def answer(request_id: int, result: str) -> None:
    filled = re.sub(r"@SIZE:(\d+)@", lambda match: "x" * int(match.group(1)), result)
    raw = filled.encode("latin-1" if "@LATIN@" in result else "utf-8")
    write(b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (request_id, raw))


def fail(request_id: int, code: int) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": "no"}}).encode())


def handle(request: dict) -> None:
    match request["method"], request.get("id"):
        case _, None:
            return
        case "initialize", request_id:
            info = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            answer(request_id, json.dumps({**info, "serverInfo": {"name": "raw", "version": "1"}}))
        case "tools/list", request_id:
            answer(request_id, json.dumps({"tools": ANSWERS.get("tools", [])}))
        case "tools/call", request_id:
            call(request_id, request["params"])
        case _, request_id:
            fail(request_id, -32601)


def call(request_id: int, params: dict) -> None:
    name = params["name"]
    if name == "environment":
        answer(request_id, json.dumps({"content": [{"type": "text", "text": json.dumps(dict(os.environ))}]}))
    elif name.startswith("code"):
        fail(request_id, int(name.removeprefix("code")))
    else:
        answer(request_id, ANSWERS[name])


def main() -> None:
    if ANSWERS.get("spawn"):
        child = subprocess.Popen(["sh", "-c", "trap '' TERM HUP; sleep 300"], start_new_session=True)
        Path(ANSWERS["spawn"]).write_text(f"{os.getpid()} {child.pid}")
    if ANSWERS.get("chatter"):
        write(b"hello, I print to my output")
    for line in sys.stdin:
        handle(json.loads(line))


if __name__ == "__main__":
    main()
