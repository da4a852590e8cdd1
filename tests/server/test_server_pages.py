"""What a browser gets, and the lists that editors look for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers.http import Endpoint


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    path: Path = gb.random_model(tmp_path_factory.mktemp("m") / "tiny.gguf", seed=3)
    with Endpoint({"tiny": path, "other": path.with_name("nowhere.gguf")}) as endpoint:
        yield endpoint


@pytest.mark.parametrize("page", ["/", "/docs"])
def test_pages_need_nothing_from_elsewhere(server: Endpoint, page: str) -> None:
    response = server.client.get(page)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in response.headers["content-security-policy"]
    links = re.findall(r'(?:src|href)="([^"]+)"', response.text)
    assert links
    for link in links:
        assert "//" not in link
        assert server.client.get("/" + link).status_code == 200, link
    assert "<script>" not in response.text  # the policy would stop it


def test_only_files_of_the_page(server: Endpoint) -> None:
    for name in ("index.html", "..%2fapp.py", "app.py", "%2e%2e%2fapp.py", "page.js/"):
        assert server.client.get(f"/page/{name}").status_code in (404, 307), name
    assert server.client.get("/page/page.js").headers["content-type"].startswith("text/javascript")


def test_lm_studios_list(server: Endpoint) -> None:
    server.llm("tiny")
    (model,) = server.client.get("/api/v0/models").json()["data"]
    assert model["id"] == "tiny"
    assert (model["state"], model["loaded_context_length"]) == ("loaded", 512)
    assert model["arch"] == "llama"
    assert server.client.get("/api/v0/models/tiny").json() == model
    missing = server.client.get("/api/v0/models/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
