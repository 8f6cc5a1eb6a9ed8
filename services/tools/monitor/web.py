"""The monitor's addresses and their guard; what they answer is decided in `watch` and `access`.

| address | answers |
|---|---|
| `/` | the page |
| `/static/…` | its files |
| `/api/panels` | which figures the page draws together |
| `/api/runs` | all runs and alerts |
| `/api/runs/{name}` | services, policy lag and videos of one run, and how it ended |
| `/api/runs/{name}/curves` | its curves |
| `/api/runs/{name}/picture` | its evaluation as a picture: u32 height, u32 width, RGB; 204: there is none |
| `/api/runs/{name}/settings` | its settings |
| `/api/runs/{name}/verdict` | what limits it |
| `/api/runs/{name}/logs?level=warning` | the last lines of its logs |
| `/api/runs/{name}/videos/{file}` | a video of its policy |
| `/metrics` | for Prometheus |

The name of a run is that of its folder; a run of `--seeds` lies one folder deeper, and its name has a slash.

Answers of the API carry an ETag; a page that has them already gets 304.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seedbed.services.tools.monitor import access
from seedbed.services.tools.monitor.access import Access, AccessVerdict
from seedbed.services.tools.monitor.exposition import MetricsSource
from seedbed.services.tools.monitor.pictures import Picture
from seedbed.services.tools.monitor.views import panels_view
from seedbed.services.tools.monitor.watch import RunWatch
from seedbed.shared.figures.panels import PANELS
from seedbed.shared.runtime.metrics import Metrics

PAGE = Path(__file__).parent / "page"
AS_IT_IS = {"Content-Encoding": "identity"}  # gzip would break the ranges that a player asks for
REFUSALS = {
    AccessVerdict.WRONG_HOST: (421, "this page answers as localhost or 127.0.0.1 only"),
    AccessVerdict.NO_TOKEN: (
        401,
        "open the address with ?token=… that the monitor printed, or send it as a bearer token",
    ),
}


class AccessGuard:
    """ASGI middleware in front of everything: admits or refuses, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, rules: Access) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other kinds of connections are closed unanswered."""
        if scope["type"] != "http":
            return
        headers, query = Headers(scope=scope), scope["query_string"].decode("latin-1")
        asked = access.Request(
            path=scope["path"],
            query=query,
            host=headers.get("host", ""),
            cookie=headers.get("cookie", ""),
            authorization=headers.get("authorization", ""),
        )
        verdict = self._rules.judge(asked)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.update(access.HEADERS)
                answer.setdefault("Cache-Control", "no-cache")
            await send(message)

        app = self._app if verdict is AccessVerdict.ADMIT else self._refusal(verdict, asked)
        await app(scope, receive, send_with_headers)

    def _refusal(self, verdict: AccessVerdict, asked: access.Request) -> Response:
        if verdict is AccessVerdict.SIGN_IN:
            target = access.without_token(asked.path, asked.query)
            return RedirectResponse(target, status_code=303, headers={"Set-Cookie": self._rules.set_cookie()})
        status, text = REFUSALS[verdict]
        headers = {"WWW-Authenticate": "Bearer"} if verdict is AccessVerdict.NO_TOKEN else None
        return PlainTextResponse(text + "\n", status_code=status, headers=headers)


def make_app(watch: RunWatch, rules: Access, own: Metrics, labels: Mapping[str, str]) -> Starlette:
    """The application. `own`, `labels`: the monitor's own metrics and what tells them from others."""

    def of_run(view: Callable[[str], Mapping[str, Any] | None]) -> Callable[[Request], Response]:
        return lambda request: as_json(request, view(request.path_params["name"]))

    def page(_request: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    def panels(_request: Request) -> Response:
        return Response(orjson.dumps(panels_view(PANELS)), media_type="application/json")

    def runs(request: Request) -> Response:
        return as_json(request, watch.overview())

    def picture(request: Request) -> Response:
        return as_picture(request, watch.picture(request.path_params["name"]))

    def logs(request: Request) -> Response:
        level = request.query_params.get("level", "info")
        return as_json(request, watch.logs(request.path_params["name"], level))

    def video(request: Request) -> Response:
        file = watch.video(request.path_params["name"], request.path_params["file"])
        if file is None:
            return PlainTextResponse("no such video\n", status_code=404)
        return FileResponse(file, headers=AS_IT_IS)

    def metrics(_request: Request) -> Response:
        families: tuple[Metric, ...] = tuple(text_string_to_metric_families(own.text()))
        body = watch.metrics(MetricsSource(labels=labels, families=families))
        return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return Starlette(
        routes=[
            Route("/", page),
            Route("/api/panels", panels),
            Route("/api/runs", runs),
            Route("/api/runs/{name:path}/curves", of_run(watch.curves)),
            Route("/api/runs/{name:path}/picture", picture),
            Route("/api/runs/{name:path}/settings", of_run(watch.settings)),
            Route("/api/runs/{name:path}/verdict", of_run(watch.verdict)),
            Route("/api/runs/{name:path}/logs", logs),
            Route("/api/runs/{name:path}/videos/{file}", video),
            Route("/api/runs/{name:path}", of_run(watch.detail)),
            Route("/metrics", metrics),
            Mount("/static", StaticFiles(directory=PAGE)),
        ],
        middleware=[
            Middleware(AccessGuard, rules=rules),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4),
        ],
    )


def as_picture(request: Request, picture: Picture | None) -> Response:
    """The picture with an ETag, 304 if the asker has it, 204 if there is none."""
    if picture is None:
        return Response(status_code=204)
    headers = {
        "ETag": f'W/"{picture.tag}"',
        "X-Seedbed-Version": f"{picture.epoch}:{picture.step}",
        "X-Seedbed-Age": f"{picture.age_s:.1f}",
    }
    if headers["ETag"] in known_tags(request):
        return Response(status_code=304, headers=headers)
    return Response(picture.frame, media_type="application/octet-stream", headers=headers)


def known_tags(request: Request) -> set[str]:
    """The ETags that the asker has."""
    return {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}


def as_json(request: Request, view: Mapping[str, Any] | None) -> Response:
    """The view with an ETag, 304 if the asker has it, 404 if there is none. Arrays become lists, NaN becomes null."""
    if view is None:
        return PlainTextResponse("no such run\n", status_code=404)
    body = orjson.dumps(view, option=orjson.OPT_SERIALIZE_NUMPY)
    etag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    if etag in known_tags(request):
        return Response(status_code=304, headers={"ETag": etag})
    return Response(body, media_type="application/json", headers={"ETag": etag})
