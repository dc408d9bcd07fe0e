"""What is kept of the prompts that were read, where it lies, and for how long."""
