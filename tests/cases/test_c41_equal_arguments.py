"""C41. Equal arguments have one hash: computed once from stored bytes, and compared with those bytes."""

from __future__ import annotations

import pytest

from approvals import services
from approvals.models import Approval
from kernel_project.primitives.canonical import canonical_bytes, parse_json, sha256_hex
from runs.models import Artifact
from tests.boundary_scene import committed, decider, make_scene, perform_now

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def digest(text: str) -> str:
    return sha256_hex(canonical_bytes(parse_json(text)))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}', True),
        ('{"x":{"a":1,"b":2}}', '{"x":{"b":2,"a":1}}', True),
        ("1e3", "1000", True),
        ("1000.0", "1000", True),
        ("-0.0", "0", True),
        ("1e-7", "0.0000001", True),
        ("9007199254740993", "9007199254740992", False),
        ('"\\u00e9"', '"é"', True),
        ('"\\u00e9"', '"e\\u0301"', False),  # NFC and NFD are two texts
        ('"1"', "1", False),
        ("true", "1", False),
        ("[1,2]", "[2,1]", False),
    ],
)
def test_what_is_equal(one, other, equal):
    assert (digest(one) == digest(other)) is equal


@pytest.mark.parametrize(
    ("text", "digest_of"),
    [
        ('{"b":{"d":1,"c":2},"a":[1e3,1000.0,-0.0,1e-7]}', '{"a":[1000,1000,0,1e-7],"b":{"c":2,"d":1}}'),
        ('{"\\ud83d\\ude00":1,"\\ufb33":2}', '{"😀":1,"\ufb33":2}'),
        ('{"n":9007199254740993}', '{"n":9007199254740993}'),
    ],
)
def test_the_canonical_bytes_are_fixed(text, digest_of):
    assert canonical_bytes(parse_json(text)).decode() == digest_of
    assert digest(text) == sha256_hex(digest_of.encode())


def test_keys_are_ordered_as_utf_16():
    """An emoji sorts before U+FB33 there, and after it by code points."""
    assert canonical_bytes({"\ufb33": 1, "😀": 2}).decode() == '{"😀":2,"\ufb33":1}'


def test_the_hash_is_the_same_wherever_it_is_computed():
    assert digest('{"amount":1e3,"to":"é"}') == "9f260bd1918998ae0f7e7fde48e3ef0be5e86cc82a47f3222212958dd19db106"


@pytest.mark.parametrize("amount", [1000.0, 1e-7, -0.0, 10**30, 1.5e300])
def test_a_valid_yes_is_not_refused_after_the_way_through_the_database(amount):
    scene = make_scene("opaque", allow=False)
    operation = scene.another(scene.run, amount=amount, to="é", **{"😀": 1, "\ufb33": 2})
    asked = Approval.objects.get(operation_id=operation.id)
    stored = Artifact.objects.get(run=scene.run, digest=operation.arguments_digest)
    assert sha256_hex(bytes(stored.body)) == operation.arguments_digest == asked.arguments_hash
    services.decide(asked.id, scene.project.slug, decider(), "approve")
    assert perform_now(operation.id).state == "succeeded"
