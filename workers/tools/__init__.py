"""The built-in tools: files, shell, HTTP. They read their settings from `TOOLPOOL_*`."""
