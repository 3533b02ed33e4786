"""Accounts of people who log in at the issuer: made at the first log-in, with a way into the console and no right.

Who they are is the issuer's `sub` alone. An account that is there already, made here or by another issuer, is never
taken over by a name or an e-mail address; a name that is taken gets a number. Rights are given here, to the account.
"""

from __future__ import annotations

from typing import Any

from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.http import HttpRequest


class Adapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """What django-allauth asks of us."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return True

    def is_auto_signup_allowed(self, request: HttpRequest, sociallogin: Any) -> bool:
        return True

    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> Any:
        sociallogin.user.is_staff = True
        return super().save_user(request, sociallogin, form)
