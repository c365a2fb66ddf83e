"""Live pages: calculations whose numbers can be edited in the browser."""
