"""docs/api.md is what docs/api.py writes."""

import runpy

from support.paths import ROOT

SCRIPT = ROOT / "docs" / "api.py"


def test_the_page_is_up_to_date():
    made = runpy.run_path(str(SCRIPT))["page"]()
    written = SCRIPT.with_suffix(".md").read_text(encoding="utf-8")
    assert made == written, "docs/api.md is not what the code says; write it anew: python docs/api.py"
