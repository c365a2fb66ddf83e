"""Claims about whole matrices, rewritten as claims about their rows, columns or cells."""

import tomllib
from decimal import Decimal

BLANK = "_"


def split_claims(source, part):
    """Return a TOML text in which each claim about values is split into claims about rows, columns or cells."""
    top, *claims = source.split("[[claims]]\n")
    parts = [top]
    for claim in claims:
        values = tomllib.loads(claim, parse_float=Decimal).get("values")
        rest = "".join(f"{line}\n" for line in claim.splitlines() if not line.startswith("values"))
        parts += [claim] if values is None else [rest + lines for lines in _lines(values, part)]
    return "[[claims]]\n".join(parts)


def _lines(values, part):
    if part == "cell":
        for row, cells in enumerate(values, 1):
            for column, cell in enumerate(cells, 1):
                if cell != BLANK:
                    yield f"cell = [{row}, {column}]\nvalue = {_printed(cell)}\n"
        return
    for index, cells in enumerate(values if part == "row" else zip(*values, strict=True), 1):
        yield f"{part} = {index}\nvalues = [{', '.join(map(_printed, cells))}]\n"


def _printed(cell):
    return f'"{BLANK}"' if cell == BLANK else str(cell).replace("Infinity", "inf")
