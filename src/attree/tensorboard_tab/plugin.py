"""The TensorBoard plugin, found by its entry point: the routes of attree's tab, and the data that they answer with.

The data are scalars, hyperparameters, curves and saved explanations of the runs; the JavaScript of the page draws them.
TensorBoard imports this module when it starts, so the module does not import PyTorch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from tensorboard import errors, plugin_util
from tensorboard.backend import http_util
from tensorboard.context import RequestContext
from tensorboard.data import provider
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from werkzeug import Request, Response

from attree.defaults import ALL_METHODS
from attree.io.files import json_ready

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

    def _runs(self, context: Any, experiment: str, query: Mapping[str, str]) -> Any:
        runs = summarise_runs(self._provider, context, experiment)
        for run in runs["runs"]:
            run["pages"] = self._files.pages(run["name"])
        return runs | {"logdir": str(self._logdir or "")}

    def _curves(self, context: Any, experiment: str, query: Mapping[str, str]) -> Any:
        return curves_of(self._provider, context, experiment, self._run(context, experiment, query))

    def _page(self, context: Any, experiment: str, query: Mapping[str, str]) -> Any:
        run = self._run(context, experiment, query)
        content = self._files.read(run, query.get("page", ""))
        if content is None:
            raise errors.NotFoundError(
                f"Expected `page` to be a page that the run has saved, JSON of at most {MAX_BYTES >> 20} MiB, "
                "but it is not."
            )
        return content

    def _run(self, context: Any, experiment: str, query: Mapping[str, str]) -> str:
        """Return the requested run. Raise if the log folder has no such run."""
        run = query.get("run", "")
        runs = self._provider.list_runs(context, experiment_id=experiment)
        if run not in {listed_run.run_name for listed_run in runs}:
            raise errors.NotFoundError("Expected `run` to be a run of this log folder, but it is not.")
        return run


def _json_route(answer: Callable[[Any, str, Mapping[str, str]], Any]) -> Callable[..., Any]:
    """Return a route that answers with JSON. `answer` returns an object, or text that is already JSON."""

    @Request.application
    def serve(request: Request) -> Response:
        environment = request.environ
        content = answer(plugin_util.context(environment), plugin_util.experiment_id(environment), request.args)
        text = content if isinstance(content, str) else json.dumps(json_ready(content), allow_nan=False)
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


SCALARS = "scalars"
HPARAMS = "hparams"
EXPLAINED = re.compile(r"explain/[^/]+/.+")
"""Tags of a method's metrics; see `attree.evaluation.metric_names`."""

MAX_POINTS = 400
"""Maximum number of points of a curve."""

PAGES = ("page.html", "explain/page.html")
"""Pages that `attree fit` and `attree explain` write to a run directory."""

STEPS = "explanations/steps"
"""Folder in which a fit saves its explanations: one file `<step>.json` for each."""

MAX_BYTES = 32 * 2**20
"""Maximum size of a file to read. Larger ones would keep TensorBoard busy for seconds; a usual page has 1 MiB."""

DATA_BEGINS, DATA_ENDS = b'<script type="application/json" id="attree-data">', b"</script>"
"""What stands around the JSON in a page."""


def has_explanations(data: provider.DataProvider) -> bool:
    """Whether any run of the log folder has metrics of explanations."""
    tags_of_runs = data.list_scalars(RequestContext(), experiment_id="", plugin_name=SCALARS)
    return any(EXPLAINED.match(tag) for tags in tags_of_runs.values() for tag in tags)


def summarise_runs(data: provider.DataProvider, context: Any, experiment: str) -> dict[str, Any]:
    """Return the last scalars and the hyperparameters of all runs with explanations, and how to show the methods."""
    values = data.read_last_scalars(context, experiment_id=experiment, plugin_name=SCALARS)
    hparams = data.list_tensors(context, experiment_id=experiment, plugin_name=HPARAMS)
    runs = []
    methods: dict[str, None] = {}
    for name in sorted(values, key=_natural):
        scalars = values[name]
        explained = [tag for tag in scalars if EXPLAINED.match(tag)]
        if not explained:
            continue
        methods |= dict.fromkeys(tag.split("/")[1] for tag in explained)
        runs.append(
            {
                "name": name,
                "step": max(datum.step for datum in scalars.values()),
                "metrics": {tag: float(datum.value) for tag, datum in scalars.items() if _is_shown(tag)},
                "settings": _settings(hparams.get(name, {})),
            }
        )
    return {"runs": runs, "methods": _looks(list(methods))}


def curves_of(data: provider.DataProvider, context: Any, experiment: str, run: str) -> list[dict[str, Any]]:
    """Return the curves of a run in the format of the page."""
    scalars = data.read_scalars(
        context,
        experiment_id=experiment,
        plugin_name=SCALARS,
        downsample=MAX_POINTS,
        run_tag_filter=provider.RunTagFilter(runs=[run]),
    )
    curves = scalars.get(run, {})
    return [
        # A resumed run writes some steps twice. The later value is kept.
        {"name": tag, "points": sorted({point.step: float(point.value) for point in points}.items())}
        for tag, points in curves.items()
        if _is_shown(tag)
    ]


def _is_shown(tag: str) -> bool:
    return EXPLAINED.match(tag) is not None or re.search("acc|auc", tag.lower()) is not None or tag.endswith("loss")


def _settings(series: Any) -> dict[str, Any]:
    """Return the hyperparameters of a run that TensorBoard's HParams page shows, by name."""
    started = series.get(hparams_metadata.SESSION_START_INFO_TAG)
    if started is None:
        return {}
    try:
        info = HParamsPluginData.FromString(started.plugin_content).session_start_info
    except Exception:  # written by another program
        return {}
    settings = {}
    for name, value in info.hparams.items():
        kind = value.WhichOneof("kind")
        if kind in ("number_value", "string_value", "bool_value"):
            settings[name] = getattr(value, kind)
    return settings


def _looks(names: list[str]) -> list[dict[str, str]]:
    """Return the name, label and colour of each method."""
    # Imported here, so that TensorBoard does not wait for Matplotlib when it starts.
    from attree.report.style import LOOKS, method_looks

    order = [name for name in LOOKS if name in names] + [name for name in names if name not in LOOKS]
    looks = method_looks(order)
    labels = {name: label for name, (label, _) in ALL_METHODS.items()}
    return [{"name": name, "label": labels.get(name, name), "color": looks[name].color} for name in order]


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in names by value: version_2 before version_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class RunFiles:
    """Reads the explanations that runs have saved. Files outside the log folder are never read, not even through links.

    Args:
        logdir: The log folder; empty if TensorBoard was started with several.
        multiplexer: TensorBoard's list of runs and their folders, if there is one.
    """

    def __init__(self, logdir: str | None, multiplexer: Any = None) -> None:
        self._logdir = logdir
        self._multiplexer = multiplexer

    def pages(self, run: str) -> list[str]:
        """Return the names of a run's saved explanations: steps in order, then finished pages."""
        folder = self._folder(run)
        if folder is None:
            return []
        try:
            names = [entry.name for entry in os.scandir(folder / STEPS) if re.fullmatch(r"\d{1,12}\.json", entry.name)]
        except OSError:
            names = []
        steps = [f"{STEPS}/{name}" for name in sorted(names, key=lambda name: int(name.removesuffix(".json")))]
        return [name for name in (*steps, *PAGES) if self._file(folder, name) is not None]

    def read(self, run: str, page: str) -> str | None:
        """Return the content of a page as JSON text; None if the run has no such page, or none that can be read."""
        folder = self._folder(run)
        if folder is None or not (page in PAGES or re.fullmatch(rf"{STEPS}/\d{{1,12}}\.json", page)):
            return None
        path = self._file(folder, page)
        if path is None:
            return None
        try:
            content = path.read_bytes()
            if page.endswith(".html"):
                start = content.index(DATA_BEGINS) + len(DATA_BEGINS)
                content = content[start : content.index(DATA_ENDS, start)]
            return _checked_json(content.decode("utf-8"))
        except (OSError, ValueError, RecursionError):  # gone meanwhile, no JSON, or nested too deeply
            return None

    def _folder(self, run: str) -> Path | None:
        """Return the folder of a run; None if TensorBoard does not know it."""
        folders = {} if self._multiplexer is None else self._multiplexer.RunPaths()
        if run in folders:
            return Path(folders[run])
        return Path(self._logdir, run) if self._logdir else None

    def _file(self, folder: Path, name: str) -> Path | None:
        """Return the path of a file in a run's folder; None if it is missing, too large or outside the log folder."""
        path = Path(os.path.realpath(folder / name))
        root = Path(os.path.realpath(self._logdir or folder))
        if not path.is_relative_to(root) or not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return path


def _checked_json(text: str) -> str:
    """Return JSON text; NaN and infinity in it, which JSON has not, become `null`. Other text raises `ValueError`."""
    constants: list[str] = []
    content = json.loads(text, parse_constant=constants.append)  # `append` returns None
    return json.dumps(content) if constants else text
