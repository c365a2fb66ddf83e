"""A local page that shows every head of a model, from the whole matrix to one cell, and its export as a report."""

from clearhead._utils.extras import needs_extra

with needs_extra("view", "clearhead view"):
    import bokeh as _bokeh  # noqa: F401
    import jinja2 as _jinja2  # noqa: F401

from clearhead.viewer.report.export import Report
from clearhead.viewer.server.serve import Viewer, view

__all__ = ["Report", "Viewer", "view"]
