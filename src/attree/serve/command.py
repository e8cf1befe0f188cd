"""The command `attree serve`: show a finished run's page with its live model, in the browser on this computer."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from attree.explain_run.command import evaluate_targets
from attree.explain_run.write_part import open_targets
from attree.io.terminal import plain_console
from attree.report.page.live import LiveModel
from attree.report.page.write import page_html
from attree.runs.classes import search_working_folder
from attree.serve.page_server import PageServer


def serve(
    run: Path,
    targets: str,
    methods: Sequence[str] | None,
    protocols: Sequence[str],
    allow: Sequence[str],
    port: int,
    open_browser: bool,
    seed: int,
) -> int:
    """Serve a run's page until the command is stopped, and return the exit status.

    Args:
        run: The run directory, or a checkpoint in it.
        targets: The targets, as in `attree explain --targets`.
        methods: Names of attribution methods; None takes those of a fit.
        protocols: Names of reduction protocols.
        allow: Import paths of the user's classes that the run's config may use.
        port: Port to listen on; 0 takes a free one.
        open_browser: Open the page in the browser.
        seed: Seed of random targets and scores.
    """
    if allow:
        search_working_folder()
    with run_server(run, targets, methods, protocols, allow, port, seed) as server:
        console = plain_console(soft_wrap=True)
        console.print(f"Page: {server.address}\nOnly this computer can open it. Press Ctrl-C to stop.")
        if open_browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("Stopped.")
    return 0


def run_server(
    run: Path,
    targets: str,
    methods: Sequence[str] | None,
    protocols: Sequence[str],
    allow: Sequence[str] = (),
    port: int = 0,
    seed: int = 0,
) -> PageServer:
    """Return the server of a run's page. The arguments are those of `serve`."""
    loaded, explained = open_targets(run, targets, methods, protocols, allow, seed)
    summary = evaluate_targets(loaded, explained, seed)
    live = LiveModel(explained.subject, summary.evaluation)
    return PageServer(page_html(summary.page(is_live=True)), live.answer, port)
