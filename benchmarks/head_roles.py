"""Tables of a model's best heads and relations, from the output of `clearhead roles --treebank`.

clearhead roles --model MODEL --treebank en_ewt-ud-dev.conllu --treebank en_ewt-ud-test.conllu --output roles.json
python benchmarks/head_roles.py roles.json minilm
"""

from __future__ import annotations

import argparse
from pathlib import Path

from clearhead.analysis.roles import Roles
from clearhead.cli.tables import SCORE_ORDER, head_name
from measuring import write

BEST_HEADS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roles", type=Path, help="file written by clearhead roles --output")
    parser.add_argument("name", help="name of the results: relations-NAME.json, heads-NAME.json")
    arguments = parser.parse_args()
    roles = Roles.from_json(arguments.roles.read_text())
    best = []
    for score in SCORE_ORDER:
        heads = ", ".join(f"{head_name(address)} ({value:.2f})" for address, value in roles.top(score, BEST_HEADS))
        if heads:
            best.append({"score": score, "highest": heads})
    write(f"heads-{arguments.name}", f"{roles.model}: the heads that score highest", best)
    relations = [
        {
            "relation": score.relation,
            "direction": score.direction,
            "head": head_name(score.address),
            "right": round(score.accuracy, 2),
            "95 %": f"{score.low:.2f}–{score.high:.2f}",
            "fixed offset": f"{score.baseline:.2f} at {score.offset:+d}",
            "pairs": score.count,
        }
        for score in roles.relations
    ]
    write(f"relations-{arguments.name}", f"{roles.model}: relations", relations)


if __name__ == "__main__":
    main()
