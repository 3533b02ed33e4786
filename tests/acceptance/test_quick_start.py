"""The README's agent, tool and clients, word for word: loaded, started with curl, followed and decided in Python."""

from __future__ import annotations

import builtins
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.parse import urlsplit

import pytest
import yaml
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from runs.models import Run
from tests.api_client import make_person
from tests.api_server import serving
from tests.kernel import ended, states

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
LOCAL = "http://127.0.0.1:8000/api/v1"
LINES_MAX = 20


def block(language: str, words: str) -> str:
    """The README's block of code in this language that holds these words."""
    [found] = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if words in text]
    return found


@pytest.fixture
def refunded(tmp_path, monkeypatch) -> list[str]:
    """The README's tool in this process, with a desk behind it; its agent follows a script instead of a paid model."""
    desk: list[str] = []
    shop = SimpleNamespace(refund=lambda order, idempotency_key: desk.append(order) or f"refunded {order}")
    monkeypatch.setattr(builtins, "shop", shop, raising=False)
    module = ModuleType("shop_tools")
    monkeypatch.setitem(sys.modules, "shop_tools", module)
    exec(compile(block("python", "@register"), "shop_tools.py", "exec"), vars(module))
    script = Path(os.environ["KERNEL_SCRIPTS"]) / "quick-start.yaml"
    script.parent.mkdir(parents=True, exist_ok=True)
    turns = [{"calls": [{"tool": "refund", "arguments": {"order": "{input}"}}]}, {"text": "It is refunded."}]
    script.write_text(yaml.safe_dump({"turns": turns}))
    text = block("yaml", "project: shop")
    assert '"openai:gpt-5"' in text
    project = tmp_path / "shop.yaml"
    project.write_text(text.replace('"openai:gpt-5"', f'"scripted:{script.name}"'))
    call_command("load_agents", str(project))
    return desk


def environment(url: str) -> dict[str, str]:
    database = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
    return os.environ | {"DATABASE_URL": database.geturl(), "KERNEL": f"{url}/api/v1"}


def run_words(words: str, given: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", words], env=given, cwd=settings.BASE_DIR, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_quick_start_is_what_the_readme_says(carrier, refunded, tmp_path):
    make_person("admin")
    shell, client = block("sh", "create_api_key"), block("python", "urlopen")
    assert len([line for line in client.splitlines() if line]) <= LINES_MAX
    assert LOCAL in shell
    with serving() as url:
        given = environment(url)
        told = run_words(shell.replace(LOCAL, given["KERNEL"]) + '\necho "KEY=$KEY"', given)
        assert told.startswith("HTTP/1.1 202")
        first = Run.objects.get()
        key = told.rpartition("KEY=")[2].strip()
        printed = subprocess.run(
            [sys.executable, "-c", client],
            env=given | {"KEY": key},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.splitlines()
    assert printed[0] == "run.started"
    assert printed[-1] == "It is refunded."
    assert printed[-2] == "end"
    assert {"approval.requested", "approval.granted", "tool.completed", "run.completed"} <= set(printed)
    run = Run.objects.exclude(id=first.id).get()
    assert ended(run).state == "completed"
    assert len(refunded) == 1
    assert states(first) == [("refund", "awaiting_approval")], "nobody has decided the first one"
