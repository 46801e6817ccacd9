"""What dispatchers and workers share: messages, encodings, names and errors."""
