"""The OpenAPI document: well formed, and kept to whatever is sent."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from helpers.http import Endpoint
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def document(server: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/openapi.json").json()
    return found


def test_document(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) >= {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics",
    }  # fmt: skip
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]) >= {"200", "400", "401", "403", "404", "413", "429", "503"}
    assert "text/event-stream" in chat["responses"]["200"]["content"]
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_docs_need_no_network(server: Endpoint) -> None:
    page = server.client.get("/docs").text
    assert "https://" not in page.replace("https://spec.openapis.org", "")


@pytest.mark.timeout(120)
def test_whatever_is_sent_is_answered_as_documented(
    server: Endpoint, document: dict[str, Any]
) -> None:
    schema = schemathesis.openapi.from_dict(document)
    for result in schema.get_all_operations():
        operation = result.ok()
        slow = operation.method.upper() == "POST"
        if "embeddings" in operation.path:
            continue  # its own tests

        @settings(
            max_examples=8 if slow else 4,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def hold(case: Any) -> None:
            if isinstance(case.body, dict):
                case.body["model"] = "small"  # a context of 64: answers are short
            response = case.call(base_url=server.url, timeout=30)
            case.validate_response(response, checks=CHECKS)

        hold()
