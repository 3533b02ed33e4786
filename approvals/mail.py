"""Messages as e-mail: plain text, a link, and no word of the call that could be mistaken for ours."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.smtp import EmailBackend

from approvals.messages import Message, NotDelivered
from kernel_project.visible_text import parts

SECONDS_MAX = 10  # for one answer of the mail server
WORD_CHARS_MAX = 120
PORTS = {"smtp": 587, "smtps": 465}
SUBJECTS = {"approval.requested": "Approval wanted", "approval.reminder": "Still waiting for approval"}
EXPIRIES = {
    "reject": "Without a decision the call is refused.",
    "cancel_run": "Without a decision the run is cancelled.",
    "escalate": "Without a decision another group is asked.",
}
BODY = """\
An agent wants to make a call that needs a person's decision.

  Agent     {agent}
  Tool      {tool} ({effect}, risk {risk})
  Project   {project}
  Asked of  {group}
  Until     {deadline_at}

{expiry}

Look at the whole call and decide here, after logging in:
{url}

This message cannot be answered, and nothing is decided by opening a link.
"""


class Mail:
    """The mail server of KERNEL_EMAIL_URL."""

    def send(self, message: Message) -> None:
        """Hand the message to the mail server. Raises NotDelivered, and what smtplib raises."""
        if not settings.EMAIL_URL:
            raise NotDelivered("no mail server is configured: set KERNEL_EMAIL_URL")
        facts = message.facts
        domain = settings.EMAIL_FROM.rpartition("@")[2].rstrip(">")
        made = EmailMessage(
            subject=f"{SUBJECTS[facts['type']]}: {word(facts['tool'])}",
            body=_text(facts),
            from_email=settings.EMAIL_FROM,
            to=[message.target],
            headers={"Message-ID": f"<{message.id}@{domain}>", "Auto-Submitted": "auto-generated"},
            connection=_server(settings.EMAIL_URL),
        )
        if made.send() != 1:
            raise NotDelivered("the mail server took nothing")


def _text(facts: dict[str, Any]) -> str:
    shown = {name: word(facts[name]) for name in ("agent", "tool", "effect", "risk", "project", "deadline_at")}
    return BODY.format(
        **shown, group=word(facts["group"] or "any approver"), expiry=EXPIRIES[facts["on_expiry"]], url=facts["url"]
    )


def word(text: object) -> str:
    """A text from anywhere on one line: what cannot be seen is named, and nothing can begin a line of its own."""
    seen = "".join(piece if kind == "text" else f"[U+{ord(piece):04X}]" for kind, piece in parts(str(text)))
    plain = " ".join(seen.replace("://", ":⁄⁄").split())  # no link but ours
    return plain if len(plain) <= WORD_CHARS_MAX else f"{plain[: WORD_CHARS_MAX - 1]}…"


def _server(url: str) -> EmailBackend:
    """`smtp://` with STARTTLS unless `?tls=none`, `smtps://` with TLS from the first byte."""
    found = urlsplit(url)
    plain = parse_qs(found.query).get("tls") == ["none"]
    return EmailBackend(
        host=found.hostname or "",
        port=found.port or PORTS[found.scheme],
        username=unquote(found.username or ""),
        password=unquote(found.password or ""),
        use_tls=found.scheme == "smtp" and not plain,
        use_ssl=found.scheme == "smtps",
        timeout=SECONDS_MAX,
    )
