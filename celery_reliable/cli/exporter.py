"""Tell Prometheus, and an autoscaler, of the whole fleet.

Exit codes: 0 interrupted, 1 the address is not free or something is not installed, 2 wrong usage.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import click

if TYPE_CHECKING:
    from celery import Celery

    from celery_reliable.contrib.prometheus import FleetCollector

_LOAD: Final = "/load/"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's name
        """Log no scrape."""


@click.command()
@click.option(
    "--port", type=click.IntRange(min=0, max=65_535), default=9188, show_default=True, help="0: any free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--otlp", is_flag=True, help="Send them by OTLP, as OTEL_EXPORTER_OTLP_* say, and serve nothing.")
@click.pass_context
def exporter(ctx: click.Context, /, *, port: int, host: str, otlp: bool) -> None:
    """Serve the fleet's metrics: /metrics for Prometheus, /load/QUEUE as JSON for an autoscaler. One is enough."""
    if otlp:
        _send(ctx.obj.app)
        return
    try:
        from celery_reliable.contrib.prometheus import FleetCollector  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as exc:
        raise click.ClickException("metrics need prometheus-client: pip install 'celery-reliable[prometheus]'") from exc
    try:
        server = make_server(host, port, application(FleetCollector(ctx.obj.app)), _Server, _Quiet)
    except OSError as exc:
        raise click.ClickException(f"{host}:{port} cannot be listened on: {exc}; choose another --port") from exc
    click.echo(f"Serving http://{host}:{server.server_port}/metrics", err=True)
    _serve(server)


def _send(app: Celery) -> None:
    """Send until Ctrl-C."""
    try:
        from celery_reliable.contrib.opentelemetry import FleetMeter  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as exc:
        raise click.ClickException("--otlp needs the SDK: pip install 'celery-reliable[opentelemetry]'") from exc
    meter = FleetMeter(app)
    click.echo("Sending the fleet's metrics by OTLP.", err=True)
    try:
        threading.Event().wait()
    except (KeyboardInterrupt, SystemExit):
        meter.close()


def _serve(server: WSGIServer) -> None:
    """Serve until SIGINT or SIGTERM, whichever Python turns into an exception here."""
    try:
        server.serve_forever()
    except (KeyboardInterrupt, SystemExit):
        threading.Thread(target=server.shutdown, daemon=True).start()
    finally:
        server.server_close()


Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def application(collector: FleetCollector) -> Application:
    """Return the WSGI application."""
    from prometheus_client import CollectorRegistry, make_wsgi_app  # noqa: PLC0415  # an extra

    registry = CollectorRegistry()
    registry.register(collector)
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))
        if path.startswith(_LOAD):
            return _load(collector, unquote(path[len(_LOAD) :]), start)
        return metrics(environ, start)  # type: ignore[no-any-return]  # untyped

    return answer


def _load(collector: FleetCollector, queue: str, start: Callable[..., Any]) -> list[bytes]:
    """Tell what a queue has to do: messages that wait, tasks that run, both."""
    fleet = collector.look()
    found = [one for one in fleet.queues if one.name == queue] if fleet else []
    status, body = "503 Service Unavailable", {"error": "store or broker are away"}
    if fleet and not found:
        status, body = "404 Not Found", {"error": "no worker consumes such a queue"}
    if fleet and found:
        waiting, running = found[0].waiting or 0, fleet.running_in(queue)
        status, body = "200 OK", {"waiting": waiting, "running": running, "load": waiting + running}  # type: ignore[dict-item]
    start(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]
