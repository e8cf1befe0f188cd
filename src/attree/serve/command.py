"""The command `attree serve`: the page of a finished run with its model behind it."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from attree.attribution import make_methods
from attree.explain_run.command import evaluate_explained
from attree.explain_run.explained import explained_of
from attree.faithfulness import resolve_protocols
from attree.io.console import plain_console
from attree.report.page.live import LiveModel
from attree.report.page.write import page_html
from attree.runs.classes import search_working_folder
from attree.runs.load_run import load_run
from attree.serve.server import PageServer


def serve(
    run: Path,
    targets: str,
    methods: Sequence[str],
    protocols: Sequence[str],
    allow: Sequence[str],
    port: int,
    open_browser: bool,
    seed: int,
) -> int:
    """Serve a run's page until it is stopped, and return the exit status.

    Args:
        run: The run's folder, or a checkpoint in it.
        targets: Which ones, as `attree explain` reads them.
        methods: Names of attribution methods.
        protocols: Names of reduction protocols.
        allow: Classes beside attree's own that the run's config may use.
        port: Port to listen on; 0 takes a free one.
        open_browser: Open the page in the browser.
        seed: Seed of random targets and scores.
    """
    if allow:
        search_working_folder()
    with run_server(run, targets, methods, protocols, allow, port, seed) as server:
        console = plain_console(soft_wrap=True)
        console.print(f"Page: {server.address}\nFor this computer alone. Ctrl-C ends it.")
        if open_browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("Ended.")
    return 0


def run_server(
    run: Path,
    targets: str,
    methods: Sequence[str],
    protocols: Sequence[str],
    allow: Sequence[str] = (),
    port: int = 0,
    seed: int = 0,
) -> PageServer:
    """The server of a run's page; the arguments are those of `serve`."""
    made, loaded = make_methods(methods, seed=seed), load_run(run, allow=allow)
    explained = explained_of(loaded, targets, seed, made, resolve_protocols(protocols, loaded.net))
    summary = evaluate_explained(loaded, explained, seed)
    live = LiveModel(explained.subject, summary.evaluation)
    return PageServer(page_html(summary.page(is_live=True)), live.answer, port)
