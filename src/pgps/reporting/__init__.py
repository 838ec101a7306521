"""Figures, animations and the report: one self-contained HTML file. They need the extra `report`."""

from pgps.reporting._extra import check_installed
from pgps.reporting.animation import Frame, animate
from pgps.reporting.comparison import compare_runs
from pgps.reporting.figures import Limits, Panel, density_grid, draw_pairs, draw_panels, encode
from pgps.reporting.recording import MOST_FRAMES, Recorder
from pgps.reporting.report import Image, Report, Table, Verdict, render
from pgps.reporting.run import rebuild_run, save_run

__all__ = [
    "MOST_FRAMES",
    "Frame",
    "Image",
    "Limits",
    "Panel",
    "Recorder",
    "Report",
    "Table",
    "Verdict",
    "animate",
    "check_installed",
    "compare_runs",
    "density_grid",
    "draw_pairs",
    "draw_panels",
    "encode",
    "rebuild_run",
    "render",
    "save_run",
]
