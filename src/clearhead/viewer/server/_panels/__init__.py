"""Parts of a page. Each one answers its own requests and follows the text, head and cell that the page shows."""
