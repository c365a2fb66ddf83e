"""A page on this machine that shows every head of a model, from the whole matrix to one cell."""

from clearhead._utils.extras import needs_extra

with needs_extra("view", "clearhead view"):
    import bokeh as _bokeh  # noqa: F401
    import jinja2 as _jinja2  # noqa: F401
