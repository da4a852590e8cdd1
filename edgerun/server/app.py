"""The application: routes, errors and what stands before them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from edgerun import __version__
from edgerun.server.errors import ERRORS, add_handlers
from edgerun.server.gate import Gate
from edgerun.server.health import Health
from edgerun.server.limits import Limits
from edgerun.server.logs import RequestLog
from edgerun.server.metrics import ServerMetrics
from edgerun.server.queue import Queue

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from edgerun.server.options import ServerOptions
    from edgerun.server.registry import Registry

__all__ = ["ROUTES", "create_app"]

#: Modules of this package that have a ``router``; earlier ones win.
ROUTES = (
    "chat_completions",
    "completions",
    "responses",
    "messages",
    "llama_cpp",
    "embeddings",
    "models_api",
    "health",
    "lmstudio",
    "pages",
)

_DESCRIPTION = """\
Language models on this machine. The routes under `/v1` also answer without that prefix, as some
clients ask for them.
"""


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            paths = super().openapi().get("paths", {})
            for operation in (o for path in paths.values() for o in path.values()):
                operation["responses"].pop("422", None)  # a wrong body is a 400 here
        return super().openapi()

    def build_middleware_stack(self) -> ASGIApp:
        """Log, gate and limits stand before everything, FastAPI's own error pages included."""
        options = self.state.options
        inner = Limits(super().build_middleware_stack(), options)
        return RequestLog(Gate(inner, options), self)


def create_app(registry: Registry, options: ServerOptions) -> FastAPI:
    """An endpoint over ``registry``'s models, which are closed when the application ends.

    ``app.state`` has ``registry``, ``options``, ``queue`` (a :class:`~edgerun.server.queue.Queue`),
    ``metrics``, and ``ready``: whether what was to be loaded at the start is.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await registry.close()

    app = _App(
        title="edgerun",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads its scripts from elsewhere
        redoc_url=None,
    )
    app.state.registry = registry
    app.state.options = options
    app.state.queue = Queue(options.places, options.max_queue)
    app.state.metrics = ServerMetrics(registry.loaded)
    app.state.ready = True
    app.state.health = Health()
    add_handlers(app)
    for name in ROUTES:
        module = importlib.import_module(f"edgerun.server.{name}")
        app.include_router(module.router, responses=ERRORS)
    return app
