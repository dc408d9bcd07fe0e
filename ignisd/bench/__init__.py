"""`ignisd bench`: what reuse saves and how fast prompts are read, here and on other servers."""
