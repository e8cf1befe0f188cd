"""What the tab shows of all runs: their last scalars, what they were trained with, and curves."""

from __future__ import annotations

import re
from typing import Any

from tensorboard.context import RequestContext
from tensorboard.data import provider
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from attree.defaults import ALL_METHODS

SCALARS = "scalars"
HPARAMS = "hparams"
EXPLAINED = re.compile(r"explain/[^/]+/.+")
"""Tags of a method's metrics: `attree.evaluation.names` says what they mean."""

MOST_POINTS = 400


def has_explanations(data: provider.DataProvider) -> bool:
    """Whether any run of the log folder has a metric of an explanation."""
    listed = data.list_scalars(RequestContext(), experiment_id="", plugin_name=SCALARS)
    return any(EXPLAINED.match(tag) for tags in listed.values() for tag in tags)


def summarise_runs(data: provider.DataProvider, context: Any, experiment: str) -> dict[str, Any]:
    """All runs with explanations: their last scalars and hyperparameters; and names and colours of the methods."""
    values = data.read_last_scalars(context, experiment_id=experiment, plugin_name=SCALARS)
    listed = data.list_tensors(context, experiment_id=experiment, plugin_name=HPARAMS)
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
                "settings": _settings(listed.get(name, {})),
            }
        )
    return {"runs": runs, "methods": _looks(list(methods))}


def curves_of(data: provider.DataProvider, context: Any, experiment: str, run: str) -> list[dict[str, Any]]:
    """The curves of one run, in the words of the page."""
    found = data.read_scalars(
        context,
        experiment_id=experiment,
        plugin_name=SCALARS,
        downsample=MOST_POINTS,
        run_tag_filter=provider.RunTagFilter(runs=[run]),
    )
    curves = found.get(run, {})
    return [
        # A resumed run writes some steps twice: the later counts.
        {"name": tag, "points": sorted({point.step: float(point.value) for point in points}.items())}
        for tag, points in curves.items()
        if _is_shown(tag)
    ]


def _is_shown(tag: str) -> bool:
    return EXPLAINED.match(tag) is not None or "acc" in tag.lower() or tag.endswith("loss")


def _settings(series: Any) -> dict[str, Any]:
    """Hyperparameters as the HParams page has them: numbers, words and flags by name."""
    started = series.get(hparams_metadata.SESSION_START_INFO_TAG)
    if started is None:
        return {}
    try:
        info = HParamsPluginData.FromString(started.plugin_content).session_start_info
    except Exception:  # written by something else
        return {}
    settings = {}
    for name, value in info.hparams.items():
        kind = value.WhichOneof("kind")
        if kind in ("number_value", "string_value", "bool_value"):
            settings[name] = getattr(value, kind)
    return settings


def _looks(names: list[str]) -> list[dict[str, str]]:
    # Imported here: Matplotlib takes a moment, and TensorBoard need not wait for it to start.
    from attree.report.looks import LOOKS, method_looks

    order = [name for name in LOOKS if name in names] + [name for name in names if name not in LOOKS]
    looks = method_looks(order)
    labels = {name: label for name, (label, _) in ALL_METHODS.items()}
    return [{"name": name, "label": labels.get(name, name), "color": looks[name].color} for name in order]


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in names by their size: version_2 before version_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
