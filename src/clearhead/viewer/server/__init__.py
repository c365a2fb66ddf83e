"""The local web server of the viewer."""
