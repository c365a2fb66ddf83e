"""The viewer's page as one HTML file that works offline."""
