"""The secrets of tools: where a worker gets them, and how calls receive them."""
