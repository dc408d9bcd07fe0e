"""The ASGI application: routes, and one shape for every error."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ignisd.errors import EngineFailure, IgnisError, MethodNotAllowed, RequestError, RouteNotFound
from ignisd.http.answers import JsonResponse, error_response
from ignisd.http.body import ClientGone
from ignisd.http.chat import ChatCompletions
from ignisd.http.choices import was_taken
from ignisd.http.completions import Completions
from ignisd.http.config import Configuration
from ignisd.http.counters import HttpCounters
from ignisd.http.entrance import Entrance
from ignisd.http.guard import Guard
from ignisd.http.health import health
from ignisd.http.intake import Intake
from ignisd.http.metrics import Metrics
from ignisd.http.models import Models
from ignisd.http.options import HttpOptions
from ignisd.http.retained import RetainedStates
from ignisd.http.service import Service
from ignisd.http.tokens import Tokens
from ignisd.live import LiveSettings

_METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"

Handler = Callable[[Request], Awaitable[Response]]


def build_app(
    service: Service,
    options: HttpOptions,
    counters: HttpCounters,
    live: LiveSettings | None = None,
) -> Starlette:
    """The application over a service, which may still be loading.

    Everything that it needs is in the arguments; two applications share nothing. `live` is what
    /v1/config tells of and changes.
    """
    intake = Intake(options)
    entrance = Entrance(service, intake, options)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        intake.close()

    app = Starlette(
        routes=[
            *_generating(entrance, intake, options, counters),
            *_telling(service, entrance, intake, options),
            *_modelling(service, options),
            *_configuring(service, options, live),
            *_watching(service, options, counters),
        ],
        middleware=[Middleware(Guard, options=options, on_error=counters.count_refusal)],
        exception_handlers=_error_handlers(counters),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _generating(
    entrance: Entrance, intake: Intake, options: HttpOptions, counters: HttpCounters
) -> Iterator[Route]:
    """What the engine has to work for."""
    chat = ChatCompletions(entrance, intake, options, counters)
    completions = Completions(entrance, intake, options, counters)
    yield Route("/v1/chat/completions", chat.__call__, methods=["POST"])
    yield Route("/v1/completions", completions.__call__, methods=["POST"])


def _telling(
    service: Service, entrance: Entrance, intake: Intake, options: HttpOptions
) -> Iterator[Route]:
    """What is told of prompts, and of what was kept of them."""
    tokens = Tokens(entrance, intake, options)
    retained = RetainedStates(service, entrance, intake, options)
    yield Route("/v1/tokenize", tokens.tokenize, methods=["POST"])
    yield Route("/v1/detokenize", tokens.detokenize, methods=["POST"])
    yield Route("/v1/reuse", retained.listing)
    yield Route("/v1/reuse/explain", retained.explain, methods=["POST"])
    yield Route("/v1/reuse/flush", retained.flush, methods=["POST"])
    yield Route("/v1/reuse/pin", retained.pin, methods=["POST"])
    yield Route("/v1/reuse/unpin", retained.unpin, methods=["POST"])


def _modelling(service: Service, options: HttpOptions) -> Iterator[Route]:
    """Which models there are, and which of them serves."""
    models = Models(service, options)
    yield Route("/v1/models", models.listing)
    yield Route("/v1/models/switch", models.switch, methods=["POST"])
    yield Route("/v1/models/{name:path}", models.one)


def _configuring(
    service: Service, options: HttpOptions, live: LiveSettings | None
) -> Iterator[Route]:
    """What the daemon was told, and telling it otherwise."""
    configuration = Configuration(service, options, live)
    yield Route("/v1/config", configuration.__call__, methods=["GET", "PATCH"])


def _watching(service: Service, options: HttpOptions, counters: HttpCounters) -> Iterator[Route]:
    """What is told of the daemon itself."""
    metrics = Metrics(service, counters, options.compat_metrics)

    async def answer_health(request: Request) -> Response:
        status, body = health(service, options.stall_s)
        return JsonResponse(body, status)

    async def answer_metrics(request: Request) -> Response:
        return Response(metrics.render(), media_type=_METRICS_TYPE)

    yield Route("/health", answer_health)
    yield Route("/metrics", answer_metrics)


def _error_handlers(
    counters: HttpCounters,
) -> dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]:
    def answered(request: Request, error: IgnisError) -> Response:
        count = counters.count_error if was_taken(request) else counters.count_refusal
        count(error)
        return error_response(error)

    async def on_ignis_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, IgnisError)
        return answered(request, error)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = answered(request, _translated(request, error))
        response.headers.update(error.headers or {})
        return response

    async def on_bug(request: Request, _: Exception) -> Response:
        # What went wrong is in the log of the server, and nothing of it in the answer.
        return answered(request, EngineFailure("The server failed on this request."))

    async def on_client_gone(_: Request, __: Exception) -> Response:
        return Response(status_code=499)

    return {
        IgnisError: on_ignis_error,
        HTTPException: on_http_exception,
        ClientGone: on_client_gone,
        Exception: on_bug,
    }


def _translated(request: Request, error: HTTPException) -> IgnisError:
    path = request.url.path
    if error.status_code == 404:
        return RouteNotFound(f"There is no {path} here.")
    if error.status_code == 405:
        return MethodNotAllowed(f"{path} does not take {request.method}.")
    return RequestError(error.detail)
