"""The server: an HTTP API over a captioner, and a page for people."""
