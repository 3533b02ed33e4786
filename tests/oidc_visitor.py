"""A process of its own with log-in at an issuer switched on, and people who log in there: prints what they see.

The settings of the tests' own process do not have it, and Django takes its apps once.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django


def main() -> None:
    django.setup()
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    setup_test_environment()
    call_command("migrate", verbosity=0, interactive=False)

    sys.stdout.write(json.dumps(story()) + "\n")


def story() -> dict[str, Any]:
    from django.contrib.auth.models import User
    from django.test import Client

    User.objects.create_superuser("ann", email="ann@example.org")
    told: dict[str, Any] = {}
    page = Client().get("/admin/login/?next=/admin/runs/run/").content.decode()
    told["offered"] = "/accounts/oidc/oidc/login/?next=/admin/runs/run/" in page
    ann = Client()
    told["ann"] = visit(ann, "ann")
    told["ann_again"] = visit(Client(), "ann")
    told["eve"] = visit(Client(), "eve")
    told["accounts"] = sorted(User.objects.values_list("username", "is_staff", "is_superuser", "email"))
    User.objects.filter(username="eve").update(is_active=False)
    told["switched_off"] = visit(Client(), "eve")
    told["forged"] = forged(Client())
    told["others"] = [Client().get(f"/accounts/{page}/").status_code for page in ("signup", "password/reset", "email")]
    return told


def visit(client: Any, name: str) -> dict[str, Any]:
    """Log in at the issuer as this person, and look at what the console says."""
    from django.conf import settings

    begun = client.get("/accounts/oidc/oidc/login/?next=/admin/runs/run/")
    asked = parse_qs(urlsplit(begun["Location"]).query)
    back = fetched(f"{settings.OIDC_ISSUER}/as/{name}", begun["Location"])
    landed = client.get(back)
    seen = client.get("/admin/")
    return {
        "to": landed.get("Location", ""), "pkce": asked.get("code_challenge_method"), "status": seen.status_code,
        "may_see_runs": client.get("/admin/runs/run/").status_code == 200,
    }  # fmt: skip


def fetched(who: str, authorize: str) -> str:
    """Where the issuer sends the browser, after it was told who sits there."""
    import httpx2

    with httpx2.Client(trust_env=False) as http:
        http.get(who)
        place = urlsplit(http.get(authorize).headers["Location"])
    return f"{place.path}?{place.query}"


def forged(client: Any) -> dict[str, Any]:
    """Somebody else's code with a state that this browser never began."""
    answer = client.get("/accounts/oidc/oidc/login/callback/?code=x&state=y")
    return {
        "status": answer.status_code,
        "told": "failed" in answer.content.decode(),
        "in": "_auth_user_id" in client.session,
    }


if __name__ == "__main__":
    main()
