"""Django's settings for the kernel: web, worker, Celery and commands. The values come from `environment.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dj_database_url
from psycopg_pool import ConnectionPool

from kernel_project import environment, oidc
from kernel_project.console import UNFOLD as UNFOLD
from kernel_project.devstack.layout import Layout
from kernel_project.primitives import logs

ENV = environment.read()
BASE_DIR = Path(__file__).resolve().parent.parent
PRODUCTION = ENV.kernel_mode == "production"

SECRET_KEY = ENV.secret_key
DEBUG = False
ALLOWED_HOSTS = ENV.allowed_hosts.split(",")
CSRF_TRUSTED_ORIGINS = [origin for origin in ENV.csrf_trusted_origins.split(",") if origin]
ROOT_URLCONF = "kernel_project.urls"
ASGI_APPLICATION = "kernel_project.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "kernel_project.admin_config.OversightConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "ninja",  # its own copy of the OpenAPI page's scripts: no page asks another origin
    "kernel_project",
    "outbox",
    "approvals",
    "runs",
    "temporality",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "kernel_project.csp.AdminPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


# The pool's own back-off doubles: after an outage it would look for the database again only after as long a time as
# the outage took. Giving up early and asking for a new connection at once keeps it at about a second.
POOL_RECONNECT_SECONDS = 2.0
POOL_WAIT_SECONDS = 10.0  # for a connection
STORE_WAIT_SECONDS = 3.0  # for one to the event store's database: nothing but pages asks there, and they go on without


def _pool(connections_max: int, wait_seconds: float) -> dict[str, Any]:
    return {
        "min_size": 0,
        "max_size": connections_max,
        "timeout": wait_seconds,
        "reconnect_timeout": POOL_RECONNECT_SECONDS,
        "reconnect_failed": ConnectionPool.check,
    }


def _database(url: str, pool_max: int, wait_seconds: float) -> dict[str, Any]:
    """A psycopg pool per process: threads borrow a checked connection, so none of them keeps a broken one (C65)."""
    return dict(dj_database_url.parse(url, engine="kernel_project.pooled_postgres")) | {
        "CONN_HEALTH_CHECKS": False,  # ours checks what it borrows
        "OPTIONS": {
            "pool": _pool(pool_max, wait_seconds),
            # Django's own cursors never prepare; ours (primitives/sql.py) do at once
            "prepare_threshold": 0 if ENV.database_prepared_statements else None,
        },
        "DISABLE_SERVER_SIDE_CURSORS": True,  # a pooler in transaction mode may stand between
    }


DATABASES = {"default": _database(ENV.database_url, ENV.database_pool_max, POOL_WAIT_SECONDS)}
if ENV.temporality_database_url:
    DATABASES["temporality"] = _database(ENV.temporality_database_url, ENV.temporality_pool_max, STORE_WAIT_SECONDS)
DATABASE_ROUTERS = ["kernel_project.routers.TemporalityRouter"]

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
FORMAT_MODULE_PATH = "kernel_project.formats"

STATIC_URL = "/static/"
STATIC_ROOT = Layout.from_environment().var / "static"
WHITENOISE_USE_FINDERS = not PRODUCTION

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PRODUCTION
SESSION_COOKIE_HTTPONLY = True
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024  # bytes; the API refuses larger bodies with 413

CELERY_BROKER_URL = ENV.redis_url
TEMPORAL_ADDRESS = ENV.temporal_address
TEMPORAL_NAMESPACE = ENV.temporal_namespace
TEMPORAL_TASK_QUEUE = ENV.temporal_task_queue
TEMPORAL_UI_URL = ENV.temporal_ui_url
TEMPORAL_PAYLOAD_KEYS = ENV.temporal_payload_keys
TEMPORAL_CODEC_ORIGINS = [origin for origin in ENV.temporal_codec_origins.split(",") if origin]
KERNEL_BUILD_ID = ENV.kernel_build_id
KERNEL_WORKER_VERSIONING = ENV.kernel_worker_versioning
KERNEL_SEPARATE_QUEUES = ENV.kernel_separate_queues
KERNEL_CHILD_DEPTH_MAX = ENV.kernel_child_depth_max
KERNEL_CHILDREN_MAX = ENV.kernel_children_max
TEMPORALITY_URL = ENV.temporality_url
TEMPORALITY_TOKEN = ENV.temporality_token
KERNEL_SOURCE_ID = ENV.kernel_source_id
RECONCILE_FOUR_EYES = ENV.reconcile_four_eyes
OUTBOX_KEEP_MONTHS = ENV.outbox_keep_months
ARTIFACT_URL = ENV.artifact_url
ARTIFACT_KEYS = ENV.artifact_keys
EXPORT_SIGNING_KEY = ENV.export_signing_key
WORKSPACE_ROOT = Path(ENV.workspace_root)
PUBLIC_URL = ENV.kernel_public_url.rstrip("/")
EMAIL_URL = ENV.kernel_email_url
EMAIL_FROM = ENV.kernel_email_from
LIVE_TOKENS = ENV.kernel_live_tokens
OIDC_ISSUER = ENV.kernel_oidc_issuer
TRACES_URL = ENV.kernel_traces_url
PRIVATE_HOSTS = tuple(host for host in ENV.kernel_private_hosts.split(",") if host)
SANDBOX_DRIVER = ENV.sandbox_driver
SANDBOX_ENGINE = ENV.sandbox_engine
SANDBOX_IMAGE = ENV.sandbox_image
KERNEL_FAULTS = ENV.kernel_faults
KERNEL_TOOL_MODULES = [module for module in ENV.kernel_tool_modules.split(",") if module]

LOGGING = logs.configuration(ENV.log_level, ENV.log_format)

if OIDC_ISSUER:
    INSTALLED_APPS += oidc.APPS
    MIDDLEWARE += oidc.MIDDLEWARE
    globals().update(
        oidc.configuration(OIDC_ISSUER, ENV.kernel_oidc_client_id, ENV.kernel_oidc_client_secret, production=PRODUCTION)
    )
