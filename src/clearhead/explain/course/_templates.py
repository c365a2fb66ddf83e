"""Jinja environment of the course's pages."""

from __future__ import annotations

from clearhead._utils.extras import needs_extra

with needs_extra("explain", "the course"):
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

_LOADERS = [PackageLoader("clearhead.explain.course", folder) for folder in ("templates", "static")]
TEMPLATES = Environment(loader=ChoiceLoader(_LOADERS), autoescape=True, undefined=StrictUndefined)
# JSON without spaces, in the order of the data: by default, tojson sorts keys
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
