"""A mail server that keeps what it is given, and may refuse it. As much of SMTP as a client needs, and no more."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import cast

CLIENT_SECONDS_MAX = 10


class MailServer:
    """The messages in order of arrival. `answer` is what it says after one was handed over."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.recipients: list[str] = []
        self.answer = "250 taken"
        self.url = ""

    def take(self, data: bytes) -> str:
        if self.answer.startswith("250"):
            self.messages.append(cast(EmailMessage, message_from_bytes(data, policy=policy.default)))
        return self.answer


@contextmanager
def mail_server() -> Iterator[MailServer]:
    server = MailServer()

    class Handler(socketserver.StreamRequestHandler):
        timeout = CLIENT_SECONDS_MAX

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def handle(self) -> None:
            self.say("220 here")
            for line in self.rfile:
                match line[:4].upper():
                    case b"DATA":
                        self.say("354 go on")
                        self.say(server.take(self.body()))
                    case b"QUIT":
                        self.say("221 bye")
                        break
                    case b"RCPT":
                        server.recipients.append(line.decode().partition(":")[2].strip().strip("<>"))
                        self.say("250 ok")
                    case _:
                        self.say("250 ok")

        def body(self) -> bytes:
            lines = []
            for line in self.rfile:
                if line == b".\r\n":
                    break
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            return b"".join(lines)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        server.url = f"smtp://127.0.0.1:{listening.server_address[1]}?tls=none"
        yield server
        listening.shutdown()
