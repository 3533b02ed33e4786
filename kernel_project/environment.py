"""The environment variables that the kernel reads: all of them, here, once.

In production every service must be named. In development an unset service is the embedded one under `var/`.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

from django.core.exceptions import ImproperlyConfigured
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings

from kernel_project.devstack.layout import Layout
from kernel_project.primitives import keyring

REQUIRED_IN_PRODUCTION = (
    "secret_key", "database_url", "redis_url", "temporal_address", "temporality_url", "temporality_token",
    "kernel_source_id", "artifact_url", "workspace_root", "allowed_hosts",
)  # fmt: skip
SECRET_FILE_MODE = 0o600
SECRET_KEY_CHARS_MIN = 32

# The form of each value, and what it looks like. An example never repeats the value, which may hold a password.
FORMS = {
    "database_url": (r"(postgres|postgresql)://\S+", "postgresql://user:password@host:5432/name"),
    "temporality_database_url": (r"(postgres|postgresql)://\S+", "postgresql://user:password@host:5432/name"),
    "redis_url": (r"(redis|rediss|unix)://\S+", "redis://host:6379/0"),
    "temporal_address": (r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", "host:7233"),
    "temporality_url": (r"https?://[^\s/]\S*", "https://host"),
    "artifact_url": (r"file:///\S*|s3://[^\s/]\S*", "file:///folder or s3://bucket/prefix"),
    "workspace_root": (r"/\S*", "/an/absolute/folder"),
    "kernel_public_url": (r"https?://[^\s/?#]+(/[^\s?#]*)?", "https://kernel.example.org"),
    "kernel_email_url": (r"smtps?://[^\s/]+/?(\?tls=none)?", "smtp://user:password@host:587"),
    "kernel_private_hosts": (r"[^\s,*/]+(,[^\s,*/]+)*", "hooks.internal,10.0.0.7:8443"),
    "kernel_oidc_issuer": (r"https?://[^\s/?#]+(/[^\s?#]*)?", "https://login.example.org/realms/main"),
    "kernel_traces_url": (r"https?://[^\s/]\S*", "http://host:4318/v1/traces"),
    "sandbox_image": (r"[a-z0-9][A-Za-z0-9._/:@-]*", "registry.example.org/tools:1"),
    "kernel_source_id": (r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "my-installation: letters, digits, dots and hyphens"),
}


class Environment(BaseSettings):
    """One attribute per variable, which has the same name in capitals. Documented in docs/settings.md."""

    kernel_mode: Literal["development", "production"] = "development"
    secret_key: str = Field(default="", min_length=0)
    allowed_hosts: str = ""
    csrf_trusted_origins: str = ""
    database_url: str = ""
    database_pool_max: int = Field(default=10, ge=1, le=500)
    database_prepared_statements: bool = True
    temporality_database_url: str = ""
    redis_url: str = ""
    temporal_address: str = ""
    temporal_namespace: str = "default"
    temporal_task_queue: str = "agent-kernel"
    temporal_ui_url: str = ""
    temporal_payload_keys: str = ""
    temporal_codec_origins: str = ""
    kernel_build_id: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.+-]{0,99})?$")
    kernel_worker_versioning: bool = False
    kernel_separate_queues: bool = False
    kernel_child_depth_max: int = Field(default=3, ge=0, le=10)
    kernel_children_max: int = Field(default=50, ge=0, le=10_000)
    temporality_url: str = ""
    temporality_token: str = ""
    temporality_pool_max: int = Field(default=10, ge=1, le=500)
    kernel_source_id: str = ""
    reconcile_four_eyes: bool = False
    outbox_keep_months: int = Field(default=0, ge=0, le=1_200)
    artifact_url: str = ""
    artifact_keys: str = ""
    export_signing_key: str = ""
    workspace_root: str = ""
    kernel_tool_modules: str = ""
    kernel_scripts: str = ""
    kernel_faults: str = ""
    kernel_model: str = ""
    kernel_public_url: str = ""
    kernel_oidc_issuer: str = ""
    kernel_oidc_client_id: str = ""
    kernel_oidc_client_secret: str = ""
    kernel_email_url: str = ""
    kernel_private_hosts: str = ""
    kernel_email_from: str = "agent-kernel@localhost"
    sandbox_driver: Literal["bubblewrap", "docker"] = "bubblewrap"
    sandbox_engine: str = "docker"
    sandbox_image: str = ""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    kernel_traces_url: str = ""
    kernel_live_tokens: bool = False
    log_format: Literal["text", "json"] = "text"

    @field_validator(*FORMS)
    @classmethod
    def has_its_form(cls, value: str, info: ValidationInfo) -> str:
        """A wrong value is found at the start, by its name, and not by whoever needs it first."""
        form, example = FORMS[info.field_name or ""]
        if value and not re.fullmatch(form, value):
            raise ValueError(f"must look like {example}")
        return value

    @field_validator("artifact_keys", "temporal_payload_keys")
    @classmethod
    def refers_to_keys(cls, value: str) -> str:
        """Keys themselves never stand here."""
        return keyring.check(value)

    @model_validator(mode="after")
    def pair(self) -> Self:
        """What only makes sense together."""
        if self.sandbox_driver == "docker" and not self.sandbox_image:
            raise ValueError("set SANDBOX_IMAGE: SANDBOX_DRIVER=docker runs commands in that image")
        if self.kernel_worker_versioning and not self.kernel_build_id:
            raise ValueError(
                "set KERNEL_BUILD_ID: with KERNEL_WORKER_VERSIONING=true Temporal tells builds apart by it"
            )
        if self.kernel_oidc_issuer and not (self.kernel_oidc_client_id and self.kernel_oidc_client_secret):
            raise ValueError("set KERNEL_OIDC_CLIENT_ID and KERNEL_OIDC_CLIENT_SECRET beside KERNEL_OIDC_ISSUER")
        if self.kernel_mode == "production" and self.kernel_oidc_issuer.startswith("http:"):
            raise ValueError("KERNEL_OIDC_ISSUER must begin with https:// in production")
        return self

    @model_validator(mode="after")
    def fill_or_refuse(self) -> Self:
        if self.kernel_mode == "production":
            if self.kernel_faults:
                raise ValueError("KERNEL_FAULTS breaks runs on purpose and is refused in production")
            missing = [name.upper() for name in REQUIRED_IN_PRODUCTION if not getattr(self, name)]
            if len(self.secret_key) < SECRET_KEY_CHARS_MIN and self.secret_key:
                raise ValueError(f"SECRET_KEY must be random and have at least {SECRET_KEY_CHARS_MIN} characters")
            if missing:
                raise ValueError(f"set {', '.join(missing)}: KERNEL_MODE=production takes no default for them")
            self.kernel_public_url = self.kernel_public_url or f"https://{self.allowed_hosts.split(',')[0]}"
            return self
        layout = Layout.from_environment()
        embedded: dict[str, Callable[[], str]] = {
            "secret_key": lambda: development_secret(layout, "secret_key"),
            "allowed_hosts": lambda: "localhost,127.0.0.1,[::1],testserver",
            "database_url": lambda: layout.database_url("kernel"),
            "temporality_database_url": lambda: layout.database_url("temporality"),
            "redis_url": lambda: layout.redis_url,
            "temporal_address": lambda: layout.temporal_address,
            "temporal_ui_url": lambda: layout.temporal_ui_url,
            "kernel_public_url": lambda: layout.web_url,
            "temporality_url": lambda: layout.temporality_url,
            "temporality_token": lambda: development_secret(layout, "temporality_token"),
            "kernel_source_id": lambda: "agent-kernel-dev",
            "artifact_url": lambda: (layout.var / "artifacts").as_uri(),
            "workspace_root": lambda: str(layout.var / "workspaces"),
        }
        for name, default in embedded.items():
            if not getattr(self, name):
                setattr(self, name, default())
        return self


def development_secret(layout: Layout, name: str) -> str:
    """A random secret that is made once per `var` folder and kept there, readable by its owner only."""
    path: Path = layout.var / "secrets" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        fresh.touch(mode=SECRET_FILE_MODE)
        fresh.write_text(secrets.token_urlsafe(48))
        with contextlib.suppress(FileExistsError):  # the first process wins; nobody ever reads half a secret
            path.hardlink_to(fresh)
        fresh.unlink()
    return path.read_text()


def read() -> Environment:
    """Read and check the environment. Raises ImproperlyConfigured with one sentence per variable that is wrong."""
    try:
        return Environment()
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc'])).upper() or 'environment'}: {e['msg']}" for e in error.errors()]
        raise ImproperlyConfigured("The environment is not usable. " + "; ".join(wrong)) from None
    except ValueError as error:
        raise ImproperlyConfigured(f"The environment is not usable. {error}") from None
