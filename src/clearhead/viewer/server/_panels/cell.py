"""The selected cell: its weight, the calculation of the row, and the top tokens of all heads."""

from __future__ import annotations

from clearhead.viewer import _payloads
from clearhead.viewer.server._panels.panel import Panel, Selection
from clearhead.viewer.server._tasks import Steps


class CellPanel(Panel):
    """Weight, score and calculation of the selected cell. The fastest are sent first."""

    def cell_changed(self) -> None:
        self.tasks.start("cell", self._steps(self.shown))

    def _steps(self, shown: Selection) -> Steps:
        assert shown.cursor is not None
        cell = _payloads.cell_payload(shown.cache, shown.address, *shown.cursor)
        yield lambda: self.state.update(cell=cell)
        calculation = _payloads.calculation_payload(shown.cache, shown.address, *shown.cursor)
        yield lambda: self.state.update(calculation=calculation)


class TopTokensPanel(Panel):
    """Keys that the selected query attends to most, and queries that attend most to the selected key, in all heads."""

    def cell_changed(self) -> None:
        self.tasks.start("top tokens", self._steps(self.shown), background=True)

    def settings_changed(self) -> None:
        if self.shown.cursor is not None:
            self.cell_changed()

    def _steps(self, shown: Selection) -> Steps:
        assert shown.cursor is not None
        name = shown.address[0]
        for payload in _payloads.top_tokens_payload(shown.cache, name, *shown.cursor, **shown.heatmap_options):
            if payload is None:
                yield None
            else:
                sent = {**payload, "cell": list(shown.cursor)}
                yield lambda sent=sent: self.state.update(top_tokens=sent)
