"""The engine: values that decide, one thread that computes, one coroutine between them."""
