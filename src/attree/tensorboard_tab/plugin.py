"""The TensorBoard plugin, found by its entry point: the routes of attree's tab.

TensorBoard imports this module when it starts, so the module does not import PyTorch. The JavaScript of the page draws
the tab.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from tensorboard import errors, plugin_util
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from attree.io.files import json_ready
from attree.tensorboard_tab.runs import MAX_BYTES, RunFiles, curves_of, has_explanations, summarise_runs

STATIC = {"tab.js": "application/javascript", "explorer.js": "application/javascript", "explorer.css": "text/css"}
"""Static files of the tab, with their MIME types."""


class AttreePlugin(base_plugin.TBPlugin):
    """The tab "Explanations" in TensorBoard.

    Args:
        context: TensorBoard's context, with the log folder and a provider of its data.
    """

    plugin_name = "attree"

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._provider = context.data_provider
        self._files = RunFiles(context.logdir, context.multiplexer)
        self._logdir = context.logdir
        self._is_active = False

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        """Return the routes below /data/plugin/attree: static files, and three JSON routes about runs."""
        routes = {"/runs": self._runs, "/curves": self._curves, "/page": self._page}
        apps: dict[str, Callable[..., Any]] = {route: _json_route(answer) for route, answer in routes.items()}
        return apps | {f"/static/{name}": _static_route(name, kind) for name, kind in STATIC.items()}

    def is_active(self) -> bool:
        """Whether some run has explanations. Only names in memory are read, and True is remembered."""
        self._is_active = self._is_active or has_explanations(self._provider)
        return self._is_active

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the module that TensorBoard loads into the tab."""
        return base_plugin.FrontendMetadata(es_module_path="/static/tab.js", tab_name="Explanations")

    def _runs(self, context: Any, experiment: str, given: Mapping[str, str]) -> Any:
        runs = summarise_runs(self._provider, context, experiment)
        for run in runs["runs"]:
            run["pages"] = self._files.pages(run["name"])
        return runs | {"logdir": str(self._logdir or "")}

    def _curves(self, context: Any, experiment: str, given: Mapping[str, str]) -> Any:
        return curves_of(self._provider, context, experiment, self._known(context, experiment, given))

    def _page(self, context: Any, experiment: str, given: Mapping[str, str]) -> Any:
        run = self._known(context, experiment, given)
        content = self._files.read(run, given.get("page", ""))
        if content is None:
            raise errors.NotFoundError(
                f"Expected `page` to be a page that the run has saved, JSON of at most {MAX_BYTES >> 20} MiB, "
                "but it is not."
            )
        return content

    def _known(self, context: Any, experiment: str, given: Mapping[str, str]) -> str:
        """Return the requested run. Raise if the log folder has no such run."""
        run = given.get("run", "")
        found = self._provider.list_runs(context, experiment_id=experiment)
        if run not in {one.run_name for one in found}:
            raise errors.NotFoundError("Expected `run` to be a run of this log folder, but it is not.")
        return run


def _json_route(answer: Callable[[Any, str, Mapping[str, str]], Any]) -> Callable[..., Any]:
    """Return a route that answers with JSON. `answer` returns an object, or text that is already JSON."""

    @Request.application
    def serve(request: Request) -> Response:
        environment = request.environ
        found = answer(plugin_util.context(environment), plugin_util.experiment_id(environment), request.args)
        text = found if isinstance(found, str) else json.dumps(json_ready(found), allow_nan=False)
        return http_util.Respond(request, text, "application/json")

    return serve


def _static_route(name: str, kind: str) -> Callable[..., Any]:
    """Return a route that answers with a file of the package."""

    @Request.application
    def serve(request: Request) -> Response:
        # `attree.report.page` is not used, because it imports PyTorch.
        text = files("attree").joinpath("report", "page", "static", name).read_text(encoding="utf-8")
        return http_util.Respond(request, text, kind)

    return serve
