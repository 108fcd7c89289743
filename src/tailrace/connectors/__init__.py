"""Sources and sinks that come with Tailrace."""
