"""Interactive viewer of every attention head of a model: a local web page, and reports as HTML files."""

from clearhead._utils.extras import needs_extra

with needs_extra("view", "clearhead view"):
    import bokeh as _bokeh  # noqa: F401
    import jinja2 as _jinja2  # noqa: F401

from clearhead.viewer.report.export import Report
from clearhead.viewer.server.serve import Viewer, view

__all__ = ["Report", "Viewer", "view"]
