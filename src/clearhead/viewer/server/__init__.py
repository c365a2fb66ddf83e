"""The viewer's local web server."""

from clearhead.viewer.server.serve import Viewer, view

__all__ = ["Viewer", "view"]
