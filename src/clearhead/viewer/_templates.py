"""Jinja environment of the viewer's page and of reports."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

_LOADERS = [PackageLoader("clearhead.viewer", folder) for folder in ("templates", "static")]
TEMPLATES = Environment(loader=ChoiceLoader(_LOADERS), autoescape=True, undefined=StrictUndefined)
