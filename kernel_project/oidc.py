"""Log-in at an OpenID Connect issuer, by setting: what Django needs for it. Loads nothing while it is off."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.urls import NoReverseMatch, URLPattern, URLResolver, include, path, reverse

PROVIDER = "oidc"  # part of the callback's address, /accounts/oidc/oidc/login/callback/, which the issuer must know
APPS = ["allauth", "allauth.account", "allauth.socialaccount", "allauth.socialaccount.providers.openid_connect"]
MIDDLEWARE = ["allauth.account.middleware.AccountMiddleware"]
SCOPES = ["openid", "profile", "email"]


def configuration(issuer: str, client_id: str, secret: str, *, production: bool) -> dict[str, Any]:
    """The settings of django-allauth: this issuer only, no accounts of its own, no account found by its e-mail."""
    client = {
        "provider_id": PROVIDER, "name": "OpenID Connect", "client_id": client_id, "secret": secret,
        "settings": {"server_url": issuer, "oauth_pkce_enabled": True},
    }  # fmt: skip
    return {
        "AUTHENTICATION_BACKENDS": [
            "django.contrib.auth.backends.ModelBackend",
            "allauth.account.auth_backends.AuthenticationBackend",
        ],
        "SOCIALACCOUNT_PROVIDERS": {"openid_connect": {"APPS": [client], "SCOPE": SCOPES, "OAUTH_PKCE_ENABLED": True}},
        "SOCIALACCOUNT_ADAPTER": "kernel_project.oidc_accounts.Adapter",
        "SOCIALACCOUNT_ONLY": True,
        # a link and not a form: the console's policy lets no form lead to another origin; `state` guards the way back
        "SOCIALACCOUNT_LOGIN_ON_GET": True,
        "SOCIALACCOUNT_STORE_TOKENS": False,
        "ACCOUNT_EMAIL_VERIFICATION": "none",
        "ACCOUNT_UNIQUE_EMAIL": False,  # an address makes nobody the owner of an account that is there
        "ACCOUNT_DEFAULT_HTTP_PROTOCOL": "https" if production else "http",
        "LOGIN_REDIRECT_URL": "/admin/",
    }


def login_address() -> str:
    """Where the log-in at the issuer begins; empty while it is off."""
    try:
        return reverse("openid_connect_login", args=[PROVIDER]) if settings.OIDC_ISSUER else ""
    except NoReverseMatch:
        return ""


def urls() -> list[URLPattern | URLResolver]:
    """The addresses that the log-in needs, and no page where accounts are made or joined by hand."""
    if not settings.OIDC_ISSUER:
        return []
    from allauth.account.views import account_inactive
    from allauth.socialaccount import views
    from django.views.generic import RedirectView

    def to(name: str) -> Any:
        return RedirectView.as_view(pattern_name=name)

    return [
        path("accounts/", include("allauth.socialaccount.providers.openid_connect.urls")),
        path("accounts/error/", views.login_error, name="socialaccount_login_error"),
        path("accounts/cancelled/", views.login_cancelled, name="socialaccount_login_cancelled"),
        path("accounts/inactive/", account_inactive, name="account_inactive"),
        path("accounts/login/", to("admin:login"), name="account_login"),
        path("accounts/logout/", to("admin:logout"), name="account_logout"),
        path("accounts/signup/", to("admin:login"), name="socialaccount_signup"),
        path("accounts/connections/", to("admin:index"), name="socialaccount_connections"),
    ]
