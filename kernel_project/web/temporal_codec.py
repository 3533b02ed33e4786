"""The codec endpoint of Temporal's UI: shows whoever may read bodies what payloads say. The UI's own page asks it."""

from __future__ import annotations

from typing import Literal

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads

from kernel_project.primitives import keyring
from runs.loop import payloads

PERMISSION = "runs.view_artifact"
PAYLOADS_MAX = 1_000
BODY_BYTES_MAX = 2 * 1024 * 1024


@csrf_exempt  # it changes nothing, and answers are for the origins of TEMPORAL_CODEC_ORIGINS alone
def temporal_codec(request: HttpRequest, direction: Literal["encode", "decode"]) -> HttpResponse:
    """Seal or open payloads, for a person who is logged in here and may read bodies."""
    origin = request.headers.get("Origin", "")
    if origin and origin not in settings.TEMPORAL_CODEC_ORIGINS:
        return _problem(403, "this origin is not named in TEMPORAL_CODEC_ORIGINS")
    answer = HttpResponse(status=204) if request.method == "OPTIONS" else _answer(request, direction)
    answer["Vary"], answer["Cache-Control"] = "Origin, Cookie", "no-store"
    if origin:
        answer["Access-Control-Allow-Origin"] = origin
        answer["Access-Control-Allow-Credentials"] = "true"
        answer["Access-Control-Allow-Methods"] = "POST"
        answer["Access-Control-Allow-Headers"] = "Content-Type, X-Namespace, Authorization"
    return answer


def _answer(request: HttpRequest, direction: str) -> HttpResponse:
    codec = payloads.codec()
    if request.method != "POST":
        return _problem(405, "payloads are posted")
    if codec is None:
        return _problem(404, "payloads are not sealed: TEMPORAL_PAYLOAD_KEYS names no key")
    if not request.user.is_authenticated:
        return _problem(401, "log in to the console first, and let the UI send cookies")
    if not request.user.is_staff or not request.user.has_perm(PERMISSION):
        return _problem(403, f"this takes the permission {PERMISSION}")
    if request.headers.get("X-Namespace", settings.TEMPORAL_NAMESPACE) != settings.TEMPORAL_NAMESPACE:
        return _problem(404, "this is not our namespace")
    if int(request.headers.get("Content-Length") or 0) > BODY_BYTES_MAX:
        return _problem(413, f"a request has at most {BODY_BYTES_MAX} bytes")
    try:
        given = json_format.Parse(request.body, Payloads()).payloads
        if len(given) > PAYLOADS_MAX:
            return _problem(413, f"a request has at most {PAYLOADS_MAX} payloads")
        turn = codec.seal if direction == "encode" else codec.open
        return JsonResponse(json_format.MessageToDict(Payloads(payloads=[turn(one) for one in given])))
    except (json_format.ParseError, keyring.Damaged, keyring.KeyUnavailable, ValueError) as error:
        return _problem(400, str(error)[:300])


def _problem(status: int, detail: str) -> HttpResponse:
    problem = {"type": "about:blank", "status": status, "detail": detail}
    return JsonResponse(problem, status=status, content_type="application/problem+json")
