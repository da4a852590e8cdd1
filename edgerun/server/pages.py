"""What a browser gets: a page to look and chat, and the API's documentation. No network needed."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

#: Nothing from elsewhere, nothing inline: a model's text that became markup would still do nothing.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FILES = {
    "index.html": "text/html; charset=utf-8",
    "docs.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "docs.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def _file(name: str) -> Response:
    content = (files("edgerun.server") / "page" / name).read_bytes()
    return Response(content, media_type=_FILES[name], headers=_HEADERS)


@router.get("/")
def index() -> Response:
    return _file("index.html")


@router.get("/docs")
def docs() -> Response:
    return _file("docs.html")


@router.get("/page/{name}")
def asset(name: str) -> Response:
    if name not in _FILES or name.endswith(".html"):
        return Response("no such file\n", 404, media_type="text/plain; charset=utf-8")
    return _file(name)
