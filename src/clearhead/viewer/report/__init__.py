"""Reports: the viewer's page as one HTML file that works offline."""

from clearhead.viewer.report.export import Report, report

__all__ = ["Report", "report"]
