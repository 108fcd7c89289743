"""Windows, as users write them: `windows` has their sizes and checks, `functions` what they call for their records."""
