"""What is checked while a simulated job runs, and when it has ended."""
