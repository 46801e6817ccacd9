"""Claims calls and runs their tools: on the event loop, in threads, in child processes."""
