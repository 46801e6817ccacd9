"""What both sides tell the outside of a call: names, traces, and the ways to Sentry."""
