"""Django's settings for the event store alone: its process and its commands need no other service of the kernel.

DJANGO_SETTINGS_MODULE=kernel_project.settings_temporality manage.py temporality_token list
"""

from __future__ import annotations

from typing import Literal, Self

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings

from kernel_project.devstack.layout import Layout
from kernel_project.primitives import logs


class Environment(BaseSettings):
    """One attribute per variable, which has the same name in capitals. Documented in docs/temporality.md."""

    kernel_mode: Literal["development", "production"] = "development"
    temporality_database_url: str = ""
    temporality_pool_max: int = Field(default=10, ge=2, le=500)  # connections of this process
    temporality_batch_events_max: int = Field(default=100, ge=1, le=10_000)
    temporality_body_bytes_max: int = Field(default=1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    temporality_projector: bool = True  # false: another process of this store projects
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="after")
    def fill_or_refuse(self) -> Self:
        if not self.temporality_database_url:
            if self.kernel_mode == "production":
                raise ValueError("set TEMPORALITY_DATABASE_URL: KERNEL_MODE=production takes no default for it")
            self.temporality_database_url = Layout.from_environment().database_url("temporality")
        return self


def read() -> Environment:
    """Read and check the environment. Raises ImproperlyConfigured with one sentence per variable that is wrong."""
    try:
        return Environment()
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc'])).upper() or 'environment'}: {e['msg']}" for e in error.errors()]
        raise ImproperlyConfigured("The environment is not usable. " + "; ".join(wrong)) from None


ENV = read()
DATABASES = {
    "default": {"ENGINE": "django.db.backends.dummy"},
    "temporality": dict(dj_database_url.parse(ENV.temporality_database_url)),
}
DATABASE_ROUTERS = ["kernel_project.routers.TemporalityRouter"]
INSTALLED_APPS = ["kernel_project", "temporality"]
SECRET_KEY = "the event store signs nothing"  # noqa: S105
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
LOGGING = logs.configuration(ENV.log_level, ENV.log_format)
