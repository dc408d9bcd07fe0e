"""A serving daemon for hybrid language models, with prompt reuse that changes no bit."""

__version__ = "0.1.0"
