"""Film of the course's page 10 and the film strip of docs/learn/specialize.md, from a run with a film.

clearhead train --film --seed 2 --output run
python benchmarks/course_film.py run
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from clearhead.translation import RunDirectory
from clearhead.translation.heads import read_film
from clearhead.translation.heads.probes import SCORING_HALF, SELECTION_HALF

ROOT = Path(__file__).parent.parent
COURSE_FILM = ROOT / "src" / "clearhead" / "explain" / "course" / "data" / "film.json"
STRIP = ROOT / "docs" / "images" / "film.svg"
RELATIONS = (
    "tense",
    "noun",
    "verb",
    "adjective",
    "object of the verb",
    "verb → object",
)  # the course shows the best head of each
STRIP_STEPS = (0, 90, 120, 150, 210, 1500)
CELL, GAP, LEFT, TOP, BOTTOM = 14, 18, 76, 66, 44  # pixels
INK, MARK, TEXT, QUIET = "#0b4f8a", "#b3008f", "#16181d", "#5a6070"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run with a film")
    film = read_film(RunDirectory(parser.parse_args().run))
    COURSE_FILM.parent.mkdir(exist_ok=True)
    short = selected_heads(film)
    COURSE_FILM.write_text(json.dumps(short, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    STRIP.write_text(film_strip(film, "tense"), encoding="utf-8")


def best_head(film: dict[str, Any], relation: str) -> str:
    """Return the head that finds a relation best in the last frame, such as "cross 2.3"."""
    accuracies = film["frames"][-1]["accuracy"][relation]
    return f"{film['relations'][relation]} {max(accuracies, key=lambda name: accuracies[name][SELECTION_HALF])}"


def selected_heads(film: dict[str, Any]) -> dict[str, Any]:
    """Return the film with the best heads of `RELATIONS` only, and their accuracies for these relations."""
    heads = dict.fromkeys(best_head(film, relation) for relation in RELATIONS)
    frames = []
    for frame in film["frames"]:
        accuracy = {
            relation: {
                head.split()[1]: frame["accuracy"][relation][head.split()[1]]
                for head in heads
                if head.split()[0] == film["relations"][relation]
            }
            for relation in RELATIONS
        }
        frames.append({**frame, "accuracy": accuracy, "maps": {head: frame["maps"][head] for head in heads}})
    return {
        **film,
        "relations": {relation: film["relations"][relation] for relation in RELATIONS},
        "links": [link for link in film["links"] if link[0] in RELATIONS],
        "frames": frames,
    }


def film_strip(film: dict[str, Any], relation: str) -> str:
    """Return a picture of the best head of a relation at `STRIP_STEPS`, as SVG."""
    head = best_head(film, relation)
    stack, name = head.split()
    rows, columns = film["stacks"][stack]["rows"], film["stacks"][stack]["columns"]
    _, row, column = next(link for link in film["links"] if link[0] == relation)
    width, height = CELL * len(columns), CELL * len(rows)
    parts = [
        _text(LEFT - 8, TOP + CELL * index + 11, token, anchor="end", bold=index == row)
        for index, token in enumerate(rows)
    ]
    frames = [frame for frame in film["frames"] if frame["step"] in STRIP_STEPS]
    for position, frame in enumerate(frames):
        left = LEFT + position * (width + GAP)
        parts += _map(frame["maps"][head], left, columns, column)
        parts.append(
            f'<rect x="{left + CELL * column}" y="{TOP + CELL * row}" width="{CELL}" height="{CELL}" fill="none"'
            f' stroke="{MARK}" stroke-width="2"/>'
        )
        weight = frame["maps"][head][row][column] / 1000
        accuracy = frame["accuracy"][relation][name][SCORING_HALF]
        middle = left + width / 2
        parts.append(_text(middle, TOP + height + 17, f"step {frame['step']}", anchor="middle", bold=True))
        text = f"{columns[column]} {weight:.2f} · finds {accuracy:.2f}"
        parts.append(_text(middle, TOP + height + 34, text, anchor="middle", color=QUIET))
    total = LEFT + len(frames) * (width + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {TOP + height + BOTTOM}" width="{total}"'
        f' font-family="system-ui, DejaVu Sans, sans-serif" font-size="11.5">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _map(weights: list[list[int]], left: int, columns: list[str], linked: int) -> Iterator[str]:
    for index, token in enumerate(columns):
        x, y = left + CELL * index + 11, TOP - 6
        yield _text(x, y, token, turn=f"rotate(-60 {x} {y})", bold=index == linked)
    for row, values in enumerate(weights):
        for column, value in enumerate(values):
            yield (
                f'<rect x="{left + CELL * column}" y="{TOP + CELL * row}" width="{CELL}" height="{CELL}" fill="{INK}"'
                f' fill-opacity="{max(value / 1000, 0.03):.3g}"/>'
            )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False, color: str = TEXT, turn: str = ""
) -> str:
    weight, transform = ' font-weight="700"' if bold else "", f' transform="{turn}"' if turn else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}"{weight}{transform}>{escape(text)}</text>'


if __name__ == "__main__":
    main()
