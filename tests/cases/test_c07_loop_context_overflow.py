"""C07. After the provider said that the context is too long, the same request is never sent again."""

from __future__ import annotations

import pytest

from tests.fakes.llm_server import LlmServer, failure, openai_answer
from tests.kernel import begin, ended, make_project, make_tool

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

TOO_LONG = "input length and `max_tokens` exceed context limit: 200000 > 100000"


def test_the_run_ends_with_the_errors_name_and_no_request_is_sent_twice():
    project = make_project()
    make_tool(project, "read", lambda dispatch, text: "x" * 200_000, effect="read")
    with LlmServer() as provider:
        provider.reply(openai_answer(None, [("1", "read", '{"text": "big"}')]), failure(400, TOO_LONG))
        run = ended(begin([], ["read"], project=project, model="openai:served", base_url=provider.openai_url))
        requests = [seen.body for seen in provider.seen]
    assert (run.state, run.failure_code) == ("failed", "model_context_exceeded")
    assert len(requests) == 2
    assert requests[0] != requests[1]
