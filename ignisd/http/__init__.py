"""HTTP in and out: thin handlers over the chat package and an engine."""
