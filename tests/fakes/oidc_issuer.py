"""A small OpenID Connect issuer: lets in whoever it is told to, checks PKCE and the client, signs no token."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

CLIENT = ("kernel", "a-client-secret")


class Issuer:
    """`people` are those who may come, as claims; `GET /as/NAME` says who sits at the browser."""

    def __init__(self) -> None:
        self.url = ""
        self.people: dict[str, dict[str, object]] = {}
        self.person: dict[str, object] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.refused: list[str] = []

    def authorize(self, asked: dict[str, str]) -> str:
        code = secrets.token_urlsafe(8)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, asked: dict[str, str]) -> dict[str, object] | None:
        begun = self.codes.pop(asked.get("code", ""), {})
        hashed = hashlib.sha256(asked.get("code_verifier", "").encode()).digest()
        verifies = base64.urlsafe_b64encode(hashed).rstrip(b"=").decode() == begun.get("code_challenge")
        if (asked.get("client_id"), asked.get("client_secret")) != CLIENT or not verifies:
            self.refused.append(str(asked))
            return None
        return {"access_token": "for-the-person", "token_type": "Bearer", "expires_in": 60}


@contextmanager
def oidc_issuer() -> Iterator[Issuer]:
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(place.query).items()}
            match place.path:
                case "/.well-known/openid-configuration":
                    self._json({
                        "issuer": issuer.url, "authorization_endpoint": f"{issuer.url}/authorize",
                        "token_endpoint": f"{issuer.url}/token", "userinfo_endpoint": f"{issuer.url}/userinfo",
                        "jwks_uri": f"{issuer.url}/keys",
                        "token_endpoint_auth_methods_supported": ["client_secret_post"],
                    })  # fmt: skip
                case path if path.startswith("/as/"):
                    issuer.person = issuer.people[path.removeprefix("/as/")]
                    self._json({})
                case "/authorize":
                    self.send_response(302)
                    self.send_header("Location", issuer.authorize(asked))
                    self.end_headers()
                case "/userinfo" if self.headers["Authorization"] == "Bearer for-the-person":
                    self._json(issuer.person)
                case _:
                    self._json({"error": "not_found"}, 404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            given = issuer.token({name: values[0] for name, values in parse_qs(body).items()})
            self._json(given or {"error": "invalid_grant"}, 200 if given else 400)

        def _json(self, body: object, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Quietly."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        issuer.url = f"http://127.0.0.1:{listening.server_address[1]}"
        yield issuer
        listening.shutdown()
