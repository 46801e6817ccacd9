"""File tools, confined to one workspace folder."""
