"""The pages' templates."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

_LOADERS = [PackageLoader("clearhead.viewer", folder) for folder in ("templates", "static")]
PAGES = Environment(loader=ChoiceLoader(_LOADERS), autoescape=True, undefined=StrictUndefined)
