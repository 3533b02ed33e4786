"""Doors of the web process."""

from django.contrib import admin
from django.urls import path, re_path

from kernel_project import oidc
from kernel_project.api import api
from kernel_project.metrics import metrics
from kernel_project.readiness import healthz, readyz
from kernel_project.web.failures import bad_request, no_such_path, not_found, permission_denied, server_error
from kernel_project.web.temporal_codec import temporal_codec

admin.autodiscover()
urlpatterns = [
    path("admin/", admin.site.urls),
    *oidc.urls(),
    path("api/v1/", api.urls),
    re_path(r"^api/", no_such_path),
    path("healthz", healthz),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics),
    path("temporal/codec/encode", temporal_codec, {"direction": "encode"}),
    path("temporal/codec/decode", temporal_codec, {"direction": "decode"}),
]
handler400, handler403, handler404, handler500 = bad_request, permission_denied, not_found, server_error
