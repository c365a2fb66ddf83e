"""Page that plays the film of a training run, as one self-contained HTML file."""

from __future__ import annotations

import os
from typing import Any

from clearhead._utils.files import write_text
from clearhead._utils.fonts import embed_font
from clearhead.explain.course._modules import import_map
from clearhead.explain.course._templates import TEMPLATES


def write_film_page(film: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a page that plays a film.

    Args:
        film: film of a run, as `clearhead.translation.heads.read_film` returns it.
        path: HTML file to write.
    """
    if not film["frames"]:
        raise ValueError("the film has no frames; expected at least one")
    early = min(frame["sentences"] for frame in film["frames"])
    page = TEMPLATES.get_template("film_page.html")
    write_text(path, embed_font(page.render(film=film, early=early, import_map=import_map(["film_page.js"]))))
