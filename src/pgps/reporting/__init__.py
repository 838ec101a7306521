"""Figures, animations and the report: one self-contained HTML file. They need the extra `report`."""

from pgps.reporting._extra import check_installed
from pgps.reporting.animation import Frame, animate
from pgps.reporting.figures import Limits, Panel, density_grid, draw_pairs, draw_panels, encode
from pgps.reporting.report import Image, Report, Table, Verdict, render
from pgps.reporting.run import save_run

__all__ = [
    "Frame",
    "Image",
    "Limits",
    "Panel",
    "Report",
    "Table",
    "Verdict",
    "animate",
    "check_installed",
    "density_grid",
    "draw_pairs",
    "draw_panels",
    "encode",
    "render",
    "save_run",
]
