"""The pages' templates."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

PAGES = Environment(loader=PackageLoader("clearhead.viewer"), autoescape=True, undefined=StrictUndefined)
